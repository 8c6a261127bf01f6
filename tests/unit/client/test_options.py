"""Options: what clients accept, what they refuse and with which words, and what follows what."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.consumer_options import OffsetReset, ResetPolicy
from headrace.client.options import (
    OPTIONS,
    AdminConfig,
    AdminOptions,
    ConsumerConfig,
    ConsumerOptions,
    IsolationLevel,
    ProducerConfig,
    ProducerOptions,
    admin_options,
    consumer_options,
    from_properties,
    producer_options,
)
from headrace.client.serializers import json_from_bytes, json_to_bytes, string_to_bytes
from headrace.errors import ConfigError
from headrace.net.addresses import Address
from headrace.options import Bool, Int, Option
from headrace.protocol.compression import Compression
from tools import make_client_docs

MAKERS: dict[str, Any] = {
    "producer": producer_options,
    "consumer": consumer_options,
    "admin": admin_options,
}
DATACLASSES = {"producer": ProducerOptions, "consumer": ConsumerOptions, "admin": AdminOptions}
CONFIGS = {"producer": ProducerConfig, "consumer": ConsumerConfig, "admin": AdminConfig}
ALL_OPTIONS = [(client, value) for client, table in OPTIONS.items() for value in table.values()]

each_client = pytest.mark.parametrize("client", OPTIONS)


def for_each(options: list[tuple[str, Option]]) -> pytest.MarkDecorator:
    names = [f"{client}:{option.name}" for client, option in options]
    return pytest.mark.parametrize(("client", "option"), options, ids=names)


NUMBERS = [
    (client, all_option) for client, all_option in ALL_OPTIONS if isinstance(all_option.type, Int)
]
FLAGS = [
    (client, all_option) for client, all_option in ALL_OPTIONS if isinstance(all_option.type, Bool)
]
each_option = for_each(ALL_OPTIONS)


def refusal(client: str, /, **given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        MAKERS[client](**given)
    return str(caught.value)


def property_refusal(client: Any, properties: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        from_properties(properties, client)
    return str(caught.value)


@each_client
def test_table_dataclass_and_keyword_arguments_name_the_same_options(client: str) -> None:
    table = OPTIONS[client]
    assert [field.name for field in fields(DATACLASSES[client])] == list(table)
    arguments = {name for value in table.values() for name in value.names}
    assert set(get_type_hints(CONFIGS[client])) == arguments | {"client_config", "profile"}


@each_client
def test_no_option_must_be_given(client: str) -> None:
    MAKERS[client]()


@each_option
def test_every_default_is_a_value_its_option_accepts(client: str, option: Option) -> None:
    group = {"group_id": "g"} if option.name == "enable_auto_commit" else {}
    MAKERS[client](**{option.name: option.default}, **group)


@each_option
def test_every_option_refuses_another_type_and_names_itself(client: str, option: Option) -> None:
    message = refusal(client, **{option.name: object()})
    shown = "(hidden)" if option.sensitive else "<object object"
    assert message.startswith(f"{option.name} cannot be {shown}")
    assert option.type.allowed_value in message


@each_option
def test_every_option_has_a_sentence_and_is_said_in_kafkas_words(
    client: str, option: Option
) -> None:
    assert option.doc.endswith(".")
    assert "_" not in option.kafka_name


@for_each([(client, entry) for client, entry in NUMBERS + FLAGS if entry.default is not None])
def test_properties_mean_what_the_keyword_argument_means(client: Any, option: Option) -> None:
    for name in option.properties:
        parsed = from_properties({name: str(option.default).lower()}, client)
        assert parsed == {option.name: option.default}


@for_each(NUMBERS)
def test_bounds_are_held_and_told(client: str, option: Option) -> None:
    assert isinstance(option.type, Int)
    for bad in (option.type.least - 1, option.type.most + 1, True, 1.5, "1"):
        message = refusal(client, **{option.name: bad})
        allowed = option.type.allowed_value
        if option.type.maximum is None and bad == option.type.most + 1:
            allowed = f"a whole number from {option.type.least} to {option.type.most}"
        assert message == f"{option.name} cannot be {bad!r}: it must be {allowed}"


@pytest.mark.parametrize(
    ("client", "wrong", "right"),
    [
        ("producer", "linger", "linger_ms"),
        ("producer", "linger.ms", "linger_ms"),
        ("producer", "batchSize", "batch_size"),
        ("producer", "compresion_type", "compression_type"),
        ("producer", "bootstrap_server", "bootstrap_servers"),
        ("consumer", "groupid", "group_id"),
        ("consumer", "auto_offset_rest", "auto_offset_reset"),
        ("consumer", "session_timeout", "session_timeout_ms"),
        ("admin", "client", "client_id"),
    ],
)
def test_misspelt_option_is_named_with_the_likely_one(client: str, wrong: str, right: str) -> None:
    message = refusal(client, **{wrong: 1})
    expected = f"unknown option {wrong!r} of {client.capitalize()}; did you mean {right}?"
    assert message == expected


def test_option_nobody_could_have_meant_points_to_the_list() -> None:
    message = refusal("admin", qwertz=1)
    assert message == "unknown option 'qwertz' of Admin; docs/client-options.md lists them all"


@pytest.mark.parametrize(
    "name",
    ["group_protocol", "sasl_kerberos_keytab", "sasl_login_class", "ssl_context", "ssl_provider"],
)
def test_option_of_a_feature_that_is_missing_says_so(name: str) -> None:
    assert refusal("producer", **{name: "x"}).startswith(f"{name} is no option of Producer: ")


def test_options_of_the_other_client_are_refused() -> None:
    assert "unknown option 'group_id'" in refusal("producer", group_id="g")
    assert "unknown option 'linger_ms'" in refusal("consumer", linger_ms=5)


# Common options.


def test_bootstrap_servers_are_text_or_a_list() -> None:
    expected = (Address("one", 9092), Address("two", 19092))
    assert admin_options(bootstrap_servers="one,two:19092").bootstrap_servers == expected
    assert admin_options(bootstrap_servers=["one:9092", "two:19092"]).bootstrap_servers == expected


@pytest.mark.parametrize("bad", ["", [], "host:port", 9092, ["one", 2], b"one:9092"])
def test_bad_bootstrap_servers_are_named(bad: Any) -> None:
    assert refusal("admin", bootstrap_servers=bad).startswith("bootstrap_servers cannot be ")


def test_bootstrap_servers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVER", raising=False)
    assert admin_options().bootstrap_servers == (Address("localhost", 9092),)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVER", "command:1")
    assert admin_options().bootstrap_servers == (Address("command", 1),)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "a:1,b:2")
    assert admin_options().bootstrap_servers == (Address("a", 1), Address("b", 2))
    assert admin_options(bootstrap_servers="c:3").bootstrap_servers == (Address("c", 3),)


def test_clients_without_a_name_are_numbered() -> None:
    first, second = producer_options().client_id, producer_options().client_id
    assert first.startswith("producer-")
    assert int(second.rpartition("-")[2]) == int(first.rpartition("-")[2]) + 1
    assert consumer_options(group_id="billing").client_id.startswith("consumer-billing-")
    assert admin_options(client_id="mine").client_id == "mine"


def test_backoff_bounds_follow_each_other_unless_both_are_given() -> None:
    assert admin_options(retry_backoff_ms=5000).retry_backoff_max_ms == 5000
    assert admin_options(retry_backoff_max_ms=10).retry_backoff_ms == 10
    message = refusal("admin", retry_backoff_ms=20, retry_backoff_max_ms=10)
    assert message == "retry_backoff_max_ms (10) must be at least retry_backoff_ms (20)"


# Producer options.


def test_producer_defaults_are_safe() -> None:
    options = producer_options()
    assert (options.acks, options.enable_idempotence, options.max_in_flight) == (-1, True, 5)
    assert options.compression is options.compression_type is Compression.NONE
    assert options.key_serializer is None
    assert options.partitioner == "murmur2"


@pytest.mark.parametrize(("given", "acks"), [("all", -1), (-1, -1), (1, 1), (0, 0), ("1", 1)])
def test_acks(given: Any, acks: int) -> None:
    assert producer_options(acks=given).acks == acks


@pytest.mark.parametrize("bad", [2, "leader", None, True])
def test_bad_acks(bad: Any) -> None:
    message = refusal("producer", acks=bad)
    assert message == f"acks cannot be {bad!r}: it must be one of 'all', 1, 0"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"acks": 1}, 'acks="all", not 1'),
        ({"retries": 0}, "retries of at least 1, not 0"),
        ({"enable_idempotence": False}, "enable_idempotence=True, not False"),
    ],
)
def test_transactions_need_idempotence(other: Any, words: str) -> None:
    assert producer_options(transactional_id="copier").enable_idempotence is True
    message = refusal("producer", transactional_id="copier", **other)
    assert message == f"transactions (transactional_id) need {words}; change that"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"acks": 1}, 'acks="all", not 1'),
        ({"acks": 0}, 'acks="all", not 0'),
        ({"max_in_flight": 6}, "max_in_flight of at most 5, not 6"),
        ({"retries": 0}, "retries of at least 1, not 0"),
    ],
)
def test_idempotence_gives_way_unless_it_was_asked_for(other: Any, words: str) -> None:
    assert producer_options(**other).enable_idempotence is False
    assert producer_options(enable_idempotence=False, **other).enable_idempotence is False
    message = refusal("producer", enable_idempotence=True, **other)
    assert message == (
        f"enable_idempotence=True needs {words}; change that, or set enable_idempotence=False"
    )


def test_flags_are_not_text() -> None:
    message = refusal("producer", enable_idempotence="false")
    assert message == "enable_idempotence cannot be 'false': it must be True or False"


def test_in_flight_has_kafkas_long_name_too() -> None:
    assert producer_options(max_in_flight_requests_per_connection=1).max_in_flight == 1
    message = refusal("producer", max_in_flight=1, max_in_flight_requests=1)
    assert message == "max_in_flight is given twice, once as max_in_flight_requests"
    message = refusal("producer", max_in_flight_requests=0)
    assert message.startswith("max_in_flight_requests cannot be 0: ")


def test_misspelt_choice_is_named_with_the_likely_one() -> None:
    message = refusal("producer", compression_type="ztsd")
    assert message == (
        "compression_type cannot be 'ztsd': it must be one of 'none', 'gzip', 'snappy', 'lz4',"
        " 'zstd'; did you mean zstd?"
    )


@pytest.mark.parametrize(
    ("codec", "level", "words"),
    [
        ("none", 3, "'none' has no levels"),
        ("snappy", 3, "'snappy' has no levels"),
        ("gzip", 10, "gzip has the levels 1 to 9"),
        ("lz4", 0, "lz4 has the levels 1 to 17"),
    ],
)
def test_levels_belong_to_a_codec(codec: Any, level: int, words: str) -> None:
    message = refusal("producer", compression_type=codec, compression_level=level)
    assert message == f"compression_level cannot be {level}: {words}"
    assert producer_options(compression_type="zstd", compression_level=-5).compression_level == -5


def test_delivery_timeout_and_what_it_holds_agree() -> None:
    assert producer_options(request_timeout_ms=200_000).delivery_timeout_ms == 200_005
    assert producer_options(delivery_timeout_ms=2005).request_timeout_ms == 2000
    both = producer_options(delivery_timeout_ms=3000, request_timeout_ms=500, linger_ms=2500)
    assert both.delivery_timeout_ms == 3000
    message = refusal("producer", delivery_timeout_ms=1000, request_timeout_ms=1000)
    assert message == (
        "delivery_timeout_ms (1000) must be at least linger_ms (5) + request_timeout_ms (1000);"
        " raise it, or lower those"
    )
    message = refusal("producer", delivery_timeout_ms=5)
    assert message.startswith("delivery_timeout_ms (5) must be at least linger_ms (5)")


@pytest.mark.parametrize("limit", ["max_request_size", "buffer_memory"])
def test_batches_fit_into_what_holds_them(limit: str) -> None:
    assert MAKERS["producer"](**{limit: 1000}).batch_size == 1000
    message = refusal("producer", batch_size=2000, **{limit: 1000})
    assert message == (
        f"batch_size (2000) must be at most {limit} (1000); lower it, or raise {limit}"
    )


def test_partitioner_is_a_name_or_a_function() -> None:
    def first(topic: str, key: bytes | None, partition_count: int) -> int:
        return 0

    assert producer_options(partitioner=first).partitioner is first
    assert producer_options(partitioner="sticky").partitioner == "sticky"
    assert "one of 'murmur2', 'round_robin', 'sticky', or a function" in refusal(
        "producer", partitioner=None
    )


def test_serializers_are_names_or_functions() -> None:
    options = producer_options(key_serializer="string", value_serializer="json")
    assert options.key_serializer is string_to_bytes
    assert options.value_serializer is json_to_bytes
    assert producer_options(value_serializer=bytes).value_serializer is bytes
    assert consumer_options(value_deserializer="json").value_deserializer is json_from_bytes
    assert "value_serializer cannot be 'avro': " in refusal("producer", value_serializer="avro")


# Consumer options.


def test_consumer_without_a_group_does_not_commit() -> None:
    assert consumer_options().enable_auto_commit is False
    assert consumer_options(group_id="").group_id is None
    assert consumer_options(group_id="g").enable_auto_commit is True
    assert "give group_id too" in refusal("consumer", enable_auto_commit=True)
    assert "give group_id too" in refusal("consumer", group_instance_id="one")


def test_heartbeats_come_more_often_than_sessions_end() -> None:
    assert consumer_options(session_timeout_ms=3000).heartbeat_interval_ms == 1000
    message = refusal("consumer", session_timeout_ms=6000, heartbeat_interval_ms=6000)
    assert message == (
        "heartbeat_interval_ms (6000) must be less than session_timeout_ms (6000); a third of it"
        " is usual"
    )
    assert "must be less than" in refusal("consumer", heartbeat_interval_ms=45_000)


def test_a_fetch_waits_less_than_its_request_may_take() -> None:
    assert consumer_options(request_timeout_ms=300).fetch_max_wait_ms == 150
    assert "fetch_max_wait_ms (900) must be less than request_timeout_ms (300)" in refusal(
        "consumer", request_timeout_ms=300, fetch_max_wait_ms=900
    )


def test_assignors_are_names_in_any_clients_spelling() -> None:
    def strategy(given: Any) -> tuple[str, ...]:
        return consumer_options(partition_assignment_strategy=given).partition_assignment_strategy

    assert consumer_options().partition_assignment_strategy == ("range", "cooperative-sticky")
    assert strategy("sticky") == ("sticky",)
    assert strategy("roundrobin, range") == ("roundrobin", "range")
    assert strategy(["cooperative-sticky"]) == ("cooperative-sticky",)
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    assert strategy([java]) == ("cooperative-sticky",)


@pytest.mark.parametrize("bad", ["", [], "rang", ["range", "range"], [1], 7])
def test_bad_assignors(bad: Any) -> None:
    message = refusal("consumer", partition_assignment_strategy=bad)
    assert message.startswith("partition_assignment_strategy cannot be ")
    if bad == "rang":
        assert message.endswith("did you mean range?")


def test_isolation_level_is_the_number_of_the_wire() -> None:
    assert consumer_options().isolation_level == 0
    level = consumer_options(isolation_level="read_committed").isolation_level
    assert level is IsolationLevel.READ_COMMITTED
    assert int(level) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("earliest", OffsetReset(ResetPolicy.EARLIEST)),
        ("latest", OffsetReset(ResetPolicy.LATEST)),
        ("none", OffsetReset(ResetPolicy.NONE)),
        ("by_duration:PT1H", OffsetReset(ResetPolicy.BY_DURATION, 3_600_000)),
        ("by_duration:P1DT2H3M4.5S", OffsetReset(ResetPolicy.BY_DURATION, 93_784_500)),
        (0, OffsetReset(ResetPolicy.TIMESTAMP, 0)),
        ("1700000000000", OffsetReset(ResetPolicy.TIMESTAMP, 1_700_000_000_000)),
        ("2026-01-01T00:00:00Z", OffsetReset(ResetPolicy.TIMESTAMP, 1_767_225_600_000)),
        ("2026-01-01T01:00:00+01:00", OffsetReset(ResetPolicy.TIMESTAMP, 1_767_225_600_000)),
        (
            datetime(2026, 1, 1, microsecond=1999, tzinfo=UTC),
            OffsetReset(ResetPolicy.TIMESTAMP, 1_767_225_600_001),
        ),
    ],
)
def test_reset_policies(given: Any, expected: OffsetReset) -> None:
    assert consumer_options(auto_offset_reset=given).auto_offset_reset == expected


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("smallest", "it must be "),
        (-1, "it must be "),
        (True, "it must be "),
        (None, "it must be "),
        ("by_duration:1h", "is no ISO 8601 duration"),
        ("by_duration:P", "is no ISO 8601 duration"),
        ("by_duration:PT", "is no ISO 8601 duration"),
        ("2026-01-01T00:00:00", "needs a zone"),
        (datetime(2026, 1, 1), "needs a zone"),
        ("1969-12-31T23:59:59Z", "before 1970"),
    ],
)
def test_bad_reset_policies(bad: Any, words: str) -> None:
    message = refusal("consumer", auto_offset_reset=bad)
    assert message.startswith(f"auto_offset_reset cannot be {bad!r}: ")
    assert words in message


def test_reset_policy_becomes_the_timestamp_to_ask_for() -> None:
    def asked(given: Any) -> int | None:
        return consumer_options(auto_offset_reset=given).auto_offset_reset.timestamp(5_000_000)

    assert asked("earliest") == -2
    assert asked("latest") == -1
    assert asked("none") is None
    assert asked("by_duration:PT1H") == 1_400_000
    assert asked("by_duration:P9D") == 0
    assert asked(77) == 77


@given(ms=st.integers(0, 4_000_000_000_000))
def test_time_is_the_same_as_number_text_and_datetime(ms: int) -> None:
    when = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    policies = {
        consumer_options(auto_offset_reset=form).auto_offset_reset
        for form in (ms, str(ms), when, when.isoformat())
    }
    assert policies == {OffsetReset(ResetPolicy.TIMESTAMP, ms)}


# Properties.


def test_properties_become_keyword_arguments() -> None:
    arguments = from_properties(
        {
            "bootstrap.servers": "one:1",
            "acks": "all",
            "enable.idempotence": "TRUE",
            "linger.ms": " 20 ",
            "compression.type": "zstd",
            "max.in.flight.requests.per.connection": "2",
        },
        "producer",
    )
    options = producer_options(**arguments)
    assert options.bootstrap_servers == (Address("one", 1),)
    assert (options.acks, options.linger_ms, options.max_in_flight) == (-1, 20, 2)
    assert options.compression is Compression.ZSTD
    reset = from_properties({"auto.offset.reset": "by_duration:P1D"}, "consumer")
    assert consumer_options(**reset).auto_offset_reset.ms == 86_400_000


@pytest.mark.parametrize(
    ("client", "name", "text", "words"),
    [
        ("producer", "linger.ms", "soon", "linger.ms cannot be 'soon': it must be a whole number"),
        ("producer", "linger.ms", "-1", "linger.ms cannot be '-1': it must be a whole number"),
        ("consumer", "check.crcs", "yes", "check.crcs cannot be 'yes': it must be true or false"),
        ("producer", "acks", "some", "acks cannot be 'some': it must be one of all, 1, 0"),
        (
            "producer",
            "liner.ms",
            "1",
            "unknown option 'liner.ms' of Producer; did you mean linger",
        ),
        ("consumer", "sasl.login.class", "X", "sasl.login.class is no option of Consumer"),
    ],
)
def test_bad_properties(client: str, name: str, text: str, words: str) -> None:
    assert property_refusal(client, {name: text}).startswith(words)


def test_property_is_given_once_and_as_text() -> None:
    twice = {"max.in.flight": "1", "max.in.flight.requests": "1"}
    assert "is given twice" in property_refusal("producer", twice)
    number: Any = {"linger.ms": 5}
    assert "a property's value is text" in property_refusal("producer", number)


def test_documentation_is_what_the_code_says() -> None:
    assert make_client_docs.PAGE.read_text() == make_client_docs.render(), (
        "run tools/make_client_docs.py"
    )
