"""What a write may be told, and what it must be told twice."""

import pickle

import pytest

from headrace.pipelines.source.failures import OptionError
from headrace.pipelines.source.write_options import write_options


def test_properties_of_the_client_lose_their_prefix_and_travel_to_executors() -> None:
    options = write_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "Kafka.Compression.Type": "lz4",
            "TOPIC": "orders",
            "checkpointLocation": "somewhere",
            "includeHeaders": "true",
        }
    )
    assert options.topic == "orders"
    assert options.producer() == {"bootstrap_servers": "a:1,b:2", "compression_type": "lz4"}
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "a"}, "unknown option 'topics' of format \"headrace\"; did you mean topic?"),
        ({"topic": " "}, "option topic is empty; name a topic, or leave it out"),
        ({"subscribe": "a"}, "option subscribe is not for writing: it belongs to reading;"),
        ({"path": "data"}, "option path is not for writing"),
        ({"kafka.key.serializer": "x"}, "option kafka.key.serializer is not for writing"),
        ({"kafka.linger": "5"}, "(given with the prefix kafka.)"),
        ({"kafka.linger.ms": "-5"}, "(given with the prefix kafka.)"),
        ({"allowWeakDelivery": "yes"}, "option allowWeakDelivery cannot be 'yes'"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        write_options(given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "weak",
    [
        {"kafka.acks": "1"},
        {"kafka.acks": "0"},
        {"kafka.enable.idempotence": "false"},
        {"kafka.retries": "0"},
        {"kafka.max.in.flight.requests.per.connection": "6"},
    ],
)
def test_weaker_delivery_must_be_asked_for_by_name(weak: dict[str, str]) -> None:
    ((name, value),) = weak.items()
    with pytest.raises(OptionError) as caught:
        write_options(weak)
    assert str(caught.value).startswith(f"with {name}={value} rows that Spark counts as written")
    assert "allowWeakDelivery" in str(caught.value)
    assert write_options({**weak, "allowWeakDelivery": "True"}).client == {
        name.removeprefix("kafka."): value
    }
