"""What a write may be told, and what it must be told twice."""

import pickle

import pytest

from headrace.pipelines.datasource.errors import OptionError
from headrace.pipelines.datasource.write_options import (
    TRANSACTION_TIMEOUT_MS,
    Guarantee,
    batch_write_options,
    stream_write_options,
)

ONCE, AGAIN = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
NAMED = {"txnAppId": "copier", "txnVersion": "7"}


def test_properties_of_the_client_lose_their_prefix_and_travel_to_executors() -> None:
    options = stream_write_options(
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
        ({"deliveryGuarantee": "atleastonce"}, "one of exactly-once, at-least-once; did you mean"),
        ({"transactionalIdPrefix": ""}, "option transactionalIdPrefix is empty"),
        ({"kafka.transactional.id": "x"}, "transactionalIdPrefix says how they begin"),
        (
            {"kafka.transaction.timeout.ms": "5", "deliveryGuarantee": "at-least-once"},
            "about transactions, which at-least-once does without; leave it out",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], said: str) -> None:
    for options in (stream_write_options, batch_write_options):
        with pytest.raises(OptionError) as caught:
            options(given)
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
        stream_write_options(weak)
    assert str(caught.value).startswith(f"with {name}={value} rows that Spark counts as written")
    assert "allowWeakDelivery" in str(caught.value)
    allowed = {**weak, "allowWeakDelivery": "True"}
    options = stream_write_options(allowed)
    assert options.client == {name.removeprefix("kafka."): value}
    assert options.guarantee is AGAIN
    with pytest.raises(OptionError, match="rows cannot be written exactly once; leave that out"):
        stream_write_options({**allowed, "deliveryGuarantee": "exactly-once"})


def test_streams_are_written_once_and_batches_if_they_have_a_name() -> None:
    assert stream_write_options({}).guarantee is ONCE
    assert stream_write_options({"deliveryGuarantee": "At-Least-Once"}).guarantee is AGAIN
    assert batch_write_options({}).guarantee is AGAIN
    named = batch_write_options(NAMED)
    assert (named.guarantee, named.app, named.version) == (ONCE, "copier", 7)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"deliveryGuarantee": "exactly-once"}, "give txnAppId (who writes) and txnVersion (a num"),
        ({"txnAppId": "copier"}, "options txnAppId and txnVersion name a write together"),
        (NAMED | {"deliveryGuarantee": "at-least-once"}, "are for exactly once; leave them out"),
        (NAMED | {"txnVersion": "-1"}, "option txnVersion cannot be '-1': it must be a whole"),
        (NAMED | {"txnVersion": str(2**63)}, "option txnVersion cannot be"),
        (NAMED | {"txnAppId": ""}, "option txnAppId is empty; say who writes"),
    ],
)
def test_the_names_of_batch_writes_are_whole(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        batch_write_options(given)
    assert said in str(caught.value)


def test_a_streaming_query_has_a_name_of_its_own() -> None:
    with pytest.raises(OptionError, match="option txnAppId is for batch writes"):
        stream_write_options(NAMED)


def test_a_producer_of_transactions_has_time_for_a_task() -> None:
    options = stream_write_options({"kafka.acks": "all", "kafka.client.id": "me"})
    config = options.transactional_producer("headrace-q-0")
    assert config["transactional_id"] == "headrace-q-0"
    assert config["transaction_timeout_ms"] == TRANSACTION_TIMEOUT_MS
    assert options.cluster() == {"client.id": "me"}
    # The names that other clients have for an option count as well.
    secured = stream_write_options({"kafka.ssl.ca.location": "ca.pem"})
    assert secured.cluster() == {"ssl.ca.location": "ca.pem"}
    patient = stream_write_options({"kafka.transaction.timeout.ms": "7"})
    assert patient.transactional_producer("x")["transaction_timeout_ms"] == 7
