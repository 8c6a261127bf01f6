"""Settings: what is accepted, what is refused and with which words, and which source wins."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigSource,
    Listener,
    TopicConfig,
    broker_config,
    describe_broker,
    describe_topic,
    read_properties,
    topic_config,
)
from headrace.errors import ConfigError
from headrace.options import ConfigType, Int, ListOf, Number, Option, Text
from tools import make_config_docs

ALL_SETTINGS = [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()]


BITS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}


def for_each(settings: list[Option]) -> pytest.MarkDecorator:
    names = [f"{setting.scope and setting.scope.value}:{setting.name}" for setting in settings]
    return pytest.mark.parametrize("setting", settings, ids=names)


def refusal(properties: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        broker_config(properties)
    return str(caught.value)


def topic_refusal(overrides: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        topic_config(BrokerConfig(), overrides)
    return str(caught.value)


@for_each([setting for setting in ALL_SETTINGS if setting.default is not None])
def test_every_default_is_a_value_its_setting_accepts(setting: Option) -> None:
    text = setting.format(setting.default)
    assert text is not None
    assert setting.parse(text) == setting.default


@for_each([setting for setting in ALL_SETTINGS if not isinstance(setting.type, Text)])
def test_every_setting_refuses_text_of_another_type_and_names_itself(setting: Option) -> None:
    bad = "a,,b" if isinstance(setting.type, ListOf) else "no such value"
    with pytest.raises(ConfigError, match=f"^{setting.name} cannot be '{bad}': "):
        setting.parse(bad)


@for_each([setting for setting in ALL_SETTINGS if isinstance(setting.type, Int)])
def test_every_number_is_accepted_at_its_bounds_and_refused_beyond(setting: Option) -> None:
    assert isinstance(setting.type, Number)
    lowest, highest = BITS[setting.type.config_type]
    least = lowest if setting.type.minimum is None else setting.type.minimum
    most = highest if setting.type.maximum is None else setting.type.maximum
    assert setting.parse(f" {least} ") == least
    assert setting.parse(f"+{most}") == most
    for outside, bound in ((least - 1, setting.type.minimum), (most + 1, setting.type.maximum)):
        # The bounds of a type are named only where they are exceeded.
        words = f"a whole number from {least} to {most}" if bound is None else setting.type.allowed
        with pytest.raises(ConfigError, match=f"it must be {words}$"):
            setting.parse(str(outside))


@for_each(ALL_SETTINGS)
def test_every_setting_says_what_it_is_for(setting: Option) -> None:
    assert setting.doc.endswith(".")


@pytest.mark.parametrize("text", ["1_000", "0x10", "1e3", "١", "--1", "", "1.0", "9" * 5000])
def test_a_number_is_ascii_digits_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError, match="it must be a whole number of at least 0"):
        TOPIC_SETTINGS["flush.ms"].parse(text)


@given(value=st.integers(-1, 2**63 - 1))
def test_a_formatted_number_parses_back(value: int) -> None:
    setting = TOPIC_SETTINGS["retention.bytes"]
    assert setting.parse(setting.format(value) or "") == value


def test_booleans_are_true_or_false_in_any_case() -> None:
    setting = BROKER_SETTINGS["auto.create.topics.enable"]
    assert setting.parse("TRUE") is True
    assert setting.parse("False") is False
    assert setting.format(True) == "true"
    with pytest.raises(ConfigError, match="it must be true or false"):
        setting.parse("yes")


def test_a_choice_is_refused_with_the_list_of_choices() -> None:
    assert topic_refusal({"compression.type": "brotli"}) == (
        "compression.type cannot be 'brotli': it must be one of"
        " producer, uncompressed, gzip, snappy, lz4, zstd"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("shred", "'shred' is not one of delete, compact"),
        ("delete,delete", "'delete' is given twice"),
        ("delete,", "the list is empty or has an empty item"),
        ("compact,compact", "'compact' is given twice"),
    ],
)
def test_cleanup_policies_that_cannot_be_honoured_are_refused(text: str, reason: str) -> None:
    assert topic_refusal({"cleanup.policy": text}) == f"cleanup.policy cannot be {text!r}: {reason}"
    assert refusal({"log.cleanup.policy": text}).endswith(reason)


def test_throttled_replicas_are_written_as_kafka_writes_them() -> None:
    name = "leader.replication.throttled.replicas"
    repeated = topic_config(BrokerConfig(), {name: "0:1,1:2,0:1"})
    assert repeated.leader_replication_throttled_replicas == ("0:1", "1:2", "0:1")
    for text in ("*", "", ",".join(f"{index}:1" for index in range(20_000))):
        topic_config(BrokerConfig(), {name: text})
    for text in ("0:1,*", "orders:1", "1"):
        assert topic_refusal({name: text}).endswith("it must be * or a list of partition:broker")


@pytest.mark.parametrize("text", ["compact", "delete", "compact, delete", "delete,compact"])
def test_cleanup_policies(text: str) -> None:
    policies = tuple(part.strip() for part in text.split(","))
    assert topic_config(BrokerConfig(), {"cleanup.policy": text}).cleanup_policy == policies


@pytest.mark.parametrize(("text", "ratio"), [("0", 0), ("1", 1), (".5", 0.5), ("2.5e-1", 0.25)])
def test_numbers_with_a_fraction(text: str, ratio: float) -> None:
    config = topic_config(BrokerConfig(), {"min.cleanable.dirty.ratio": text})
    assert config.min_cleanable_dirty_ratio == ratio


@pytest.mark.parametrize("text", ["", "half", "nan", "inf", "-0.1", "1.1", "1_0", "1e", "."])
def test_numbers_that_are_none_or_out_of_bounds_are_refused(text: str) -> None:
    assert topic_refusal({"min.cleanable.dirty.ratio": text}) == (
        f"min.cleanable.dirty.ratio cannot be {text!r}: it must be a number from 0.0 to 1.0"
    )


def test_compaction_lags_that_contradict_each_other_are_refused() -> None:
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    assert topic_refusal(lags) == ("min.compaction.lag.ms 10 is more than max.compaction.lag.ms 9")


def test_an_unknown_setting_is_refused_with_the_closest_known_one() -> None:
    assert topic_refusal({"retention.msec": "1"}) == (
        "unknown setting 'retention.msec'; did you mean retention.ms?"
    )
    assert refusal({"listner": "x"}) == "unknown setting 'listner'; did you mean listeners?"
    assert refusal({"zookeeper.connect": "x"}) == "unknown setting 'zookeeper.connect'"


def test_a_broker_setting_is_not_a_topic_setting() -> None:
    assert "unknown setting 'log.retention.ms'" in topic_refusal({"log.retention.ms": "1"})


@pytest.mark.parametrize(
    "name", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"]
)
def test_broker_retention_of_zero_is_refused_as_it_would_delete_everything(name: str) -> None:
    assert "use -1 for no limit, or a time of at least 1" in refusal({name: "0"})


def test_a_node_is_a_broker_or_a_controller_or_both() -> None:
    assert broker_config({"process.roles": "controller,broker"}).process_roles == (
        "controller",
        "broker",
    )
    voters = {"controller.quorum.voters": "2@host:9093,3@[::1]:9093"}
    broker = broker_config({"process.roles": "broker", **voters})
    assert (broker.is_broker, broker.is_controller) == (True, False)
    assert [str(voter) for voter in broker.controller_quorum_voters] == [
        "2@host:9093",
        "3@[::1]:9093",
    ]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"process.roles": "broker"}, "must know where they are"),
        ({"controller.quorum.voters": "2@host:9093"}, "is not in controller.quorum.voters"),
        (
            {"process.roles": "broker", "controller.quorum.voters": "1@host:9093"},
            "has not the role controller",
        ),
        ({"controller.quorum.voters": "host:9093"}, "not of the form id@host:port"),
        ({"controller.quorum.voters": "1@a:1,1@b:1"}, "node 1 is named twice"),
        ({"controller.listener.names": "CONTROLLER"}, "which listeners does not have"),
        ({"broker.session.timeout.ms": "500"}, "at least twice broker.heartbeat.interval.ms"),
    ],
)
def test_roles_and_voters_that_contradict_each_other_are_refused(
    properties: dict[str, str], reason: str
) -> None:
    assert reason in refusal(properties)


def test_every_field_of_a_config_is_a_setting_under_kafkas_name() -> None:
    layers = {"static", "dynamic.defaults", "dynamic", "base"}
    names = {field.name.replace("_", ".") for field in fields(BrokerConfig)}
    assert names - layers == set(BROKER_SETTINGS)
    assert {field.name.replace("_", ".") for field in fields(TopicConfig)} == set(TOPIC_SETTINGS)


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Listener("PLAINTEXT", "127.0.0.1", 9092)),
        ("plaintext://kafka.example.org:0", Listener("PLAINTEXT", "kafka.example.org", 0)),
        ("PLAINTEXT://:9092", Listener("PLAINTEXT", "", 9092)),
        ("PLAINTEXT://[::1]:65535", Listener("PLAINTEXT", "::1", 65535)),
    ],
)
def test_listeners_are_parsed_into_values(text: str, listener: Listener) -> None:
    [parsed] = broker_config({"listeners": text}).listeners
    assert parsed == listener
    assert BROKER_SETTINGS["listeners"].parse(str(parsed)) == (listener,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("127.0.0.1:9092", "'127.0.0.1:9092' is not of the form PLAINTEXT://host:port"),
        ("PLAINTEXT://::1:9092", "is not of the form PLAINTEXT://host:port"),
        ("PLAINTEXT://host", "is not of the form PLAINTEXT://host:port"),
        ("PLAINTEXT://host:-1", "is not of the form PLAINTEXT://host:port"),
        ("PLAINTEXT://host:70000", "port 70000 is above 65535"),
        (
            "SASL_PLAINTEXT://host:9093",
            "set sasl.enabled.mechanisms to some of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,"
            " OAUTHBEARER",
        ),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", "the listener name PLAINTEXT is used twice"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:1", "the listener name PLAINTEXT is used twice"),
        ("PLAINTEXT://a:1,PLAINTEXT://[::1]:2", "the listener name PLAINTEXT is used twice"),
    ],
)
def test_listeners_that_cannot_be_bound_are_refused(text: str, reason: str) -> None:
    assert refusal({"listeners": text}).endswith(reason)


def test_one_listener_may_have_an_ipv4_and_an_ipv6_address() -> None:
    config = broker_config({"listeners": "PLAINTEXT://127.0.0.1:9092,PLAINTEXT://[::1]:9092"})
    assert [listener.host for listener in config.listeners] == ["127.0.0.1", "::1"]


def test_clients_are_told_the_bound_port() -> None:
    bound = [Listener("PLAINTEXT", "127.0.0.1", 40123)]
    config = broker_config({"listeners": "PLAINTEXT://127.0.0.1:0"})
    assert config.advertised(bound, "node-1") == (Listener("PLAINTEXT", "127.0.0.1", 40123),)
    advertising = broker_config(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "advertised.listeners": "PLAINTEXT://queue.example.org:0",
        }
    )
    assert advertising.advertised(bound, "node-1") == (
        Listener("PLAINTEXT", "queue.example.org", 40123),
    )


def test_clients_are_told_the_host_name_of_a_listener_without_a_host() -> None:
    config = broker_config({"listeners": "PLAINTEXT://:9092"})
    assert config.advertised(config.listeners, "node-1") == (Listener("PLAINTEXT", "node-1", 9092),)


def test_a_fixed_advertised_port_is_kept() -> None:
    config = broker_config({"advertised.listeners": "PLAINTEXT://queue.example.org:19092"})
    assert config.advertised(config.listeners, "node-1") == (
        Listener("PLAINTEXT", "queue.example.org", 19092),
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_an_address_that_means_every_interface_cannot_be_advertised(host: str) -> None:
    assert "clients cannot connect to" in refusal({"advertised.listeners": f"PLAINTEXT://{host}:1"})


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_listening_on_every_interface_needs_an_advertised_address(host: str) -> None:
    properties = {"listeners": f"PLAINTEXT://{host}:9092"}
    assert "set advertised.listeners" in refusal(properties)
    broker_config(properties | {"advertised.listeners": "PLAINTEXT://queue.example.org:9092"})


def test_properties_are_read_as_java_writes_them() -> None:
    text = (
        "# comment\n"
        "  ! another\n"
        "\n"
        "node.id=7\r\n"
        "num.partitions : 3\n"
        "broker.rack   eu-1\n"
        "log.dirs = /a,\\\n"
        "    /b\n"
        "odd\\=name\\ x = \\u00e9\\t.\n"
        "path=C:\\\\data\\\\\n"
        "empty=\n"
        "bare"
    )
    assert read_properties(text) == {
        "node.id": "7",
        "num.partitions": "3",
        "broker.rack": "eu-1",
        "log.dirs": "/a,/b",
        "odd=name x": "é\t.",
        "path": "C:\\data\\",
        "empty": "",
        "bare": "",
    }


def test_a_comment_cannot_be_continued_but_a_value_may_start_with_a_hash() -> None:
    assert read_properties("# a \\\nb=1\nc=\\\n#2") == {"b": "1", "c": "#2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\n\na=2", "line 3: a was already given on line 1"),
        ("\n= 5", "line 2: a name is missing before '= 5'"),
        ("a=\\u12", "line 1: \\u needs four hexadecimal digits"),
    ],
)
def test_a_malformed_properties_file_is_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_properties(text)
    assert str(caught.value) == message


def test_a_bad_value_in_a_file_is_reported_with_its_line() -> None:
    properties = read_properties("node.id=1\nlog.dirs=/a,\\\n/b\nnum.partitions=0\n")
    assert refusal(properties) == (
        "line 4: num.partitions cannot be '0': it must be a whole number of at least 1"
    )


@given(
    st.dictionaries(
        st.text("abc.=: \\#!é", min_size=1), st.text("xyz \t\\=:#!é", max_size=9), max_size=5
    )
)
def test_escaped_properties_read_back(properties: dict[str, str]) -> None:
    def escape(text: str) -> str:
        text = text.replace("\\", "\\\\").replace("\t", "\\t")
        return "".join("\\" + char if char in "=: #!" else char for char in text)

    text = "".join(f"{escape(key)}={escape(value)}\n" for key, value in properties.items())
    assert read_properties(text) == properties


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        (
            {
                "log.retention.hours": "1",
                "log.retention.minutes": "2",
                "log.retention.ms": "3",
            },
            3,
        ),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "1", "log.retention.minutes": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_retention_wins(properties: dict[str, str], retention_ms: int) -> None:
    assert topic_config(broker_config(properties), {}).retention_ms == retention_ms


def test_every_topic_setting_follows_its_broker_setting() -> None:
    given_values = {
        "log.cleanup.policy": "compact,delete",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "compression.type": "zstd",
        "encryption.enable": "true",
        "log.message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "true",
        "compression.gzip.level": "4",
        "compression.lz4.level": "4",
        "compression.zstd.level": "4",
    }
    for setting in TOPIC_SETTINGS.values():
        synonym = setting.inherits
        if not synonym:
            assert setting.name.endswith(".replication.throttled.replicas")
            continue
        text = given_values.get(synonym, "2000000")
        config = topic_config(broker_config({synonym: text}), {})
        assert setting.format(getattr(config, setting.attribute)) == text, setting.name


def test_a_topic_has_kafkas_defaults_when_nobody_says_otherwise() -> None:
    assert topic_config(BrokerConfig(), {}) == TopicConfig()


def test_a_topics_own_setting_wins_over_every_broker_setting() -> None:
    broker = broker_config({"log.segment.bytes": "2000000"}).with_overrides(
        {"log.segment.bytes": "3000000"}, {"log.segment.bytes": "4000000"}
    )
    assert topic_config(broker, {}).segment_bytes == 3_000_000
    assert topic_config(broker, {"segment.bytes": "5000000"}).segment_bytes == 5_000_000


def test_dynamic_overrides_replace_the_ones_before_them() -> None:
    static = broker_config({"message.max.bytes": "10", "node.id": "4"})
    first = static.with_overrides({"message.max.bytes": "20"}, {"log.retention.bytes": "30"})
    assert (first.message_max_bytes, first.log_retention_bytes, first.node_id) == (20, 30, 4)
    second = first.with_overrides({}, {"message.max.bytes": "40"})
    assert (second.message_max_bytes, second.log_retention_bytes) == (40, -1)
    assert second.with_overrides({}) == static


def test_a_setting_that_is_not_dynamic_cannot_be_overridden() -> None:
    with pytest.raises(ConfigError, match=r"node\.id can only be set in the broker's properties"):
        BrokerConfig().with_overrides({"node.id": "2"})
    with pytest.raises(ConfigError, match=r"log\.retention\.hours can only be set"):
        BrokerConfig().with_overrides({}, {"log.retention.hours": "2"})


def test_overrides_are_checked_like_properties() -> None:
    with pytest.raises(ConfigError, match=r"did you mean message\.max\.bytes"):
        BrokerConfig().with_overrides({"message.max.byte": "2"})
    with pytest.raises(ConfigError, match=r"message\.max\.bytes cannot be '-1'"):
        BrokerConfig().with_overrides({"message.max.bytes": "-1"})


def test_data_directories_are_log_dirs_or_else_log_dir() -> None:
    assert broker_config({}).data_directories == ("headrace-data",)
    assert broker_config({"log.dir": "/a"}).data_directories == ("/a",)
    assert broker_config({"log.dir": "/a", "log.dirs": "/b, /c"}).data_directories == ("/b", "/c")


def test_a_described_topic_setting_lists_its_sources_strongest_first() -> None:
    broker = broker_config({"log.retention.minutes": "9"}).with_overrides(
        {"log.retention.ms": "7"}, {"log.retention.ms": "8"}
    )
    described = describe_topic(broker, {"retention.ms": "6"})["retention.ms"]
    assert (described.value, described.source) == ("6", ConfigSource.TOPIC_CONFIG)
    assert [
        (synonym.name, synonym.value, int(synonym.source)) for synonym in described.synonyms
    ] == [
        ("retention.ms", "6", 1),
        ("log.retention.ms", "7", 2),
        ("log.retention.ms", "8", 3),
        ("log.retention.minutes", "9", 4),
        ("log.retention.hours", "168", 5),
    ]


@pytest.mark.parametrize(
    ("static", "dynamic", "defaults", "value", "source"),
    [
        ({}, {}, {}, "604800000", ConfigSource.DEFAULT_CONFIG),
        # As Kafka tells it: of a value's other names it tells the source only after its own.
        ({"log.retention.hours": "2"}, {}, {}, "7200000", ConfigSource.DEFAULT_CONFIG),
        (
            {"log.retention.ms": "5"},
            {},
            {"log.retention.ms": "6"},
            "6",
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ),
        ({}, {"log.retention.ms": "7"}, {}, "7", ConfigSource.DYNAMIC_BROKER_CONFIG),
    ],
)
def test_a_described_topic_setting_has_the_source_of_its_value(
    static: dict[str, str],
    dynamic: dict[str, str],
    defaults: dict[str, str],
    value: str,
    source: ConfigSource,
) -> None:
    broker = broker_config(static).with_overrides(dynamic, defaults)
    described = describe_topic(broker, {})["retention.ms"]
    assert (described.value, described.source) == (value, source)
    assert described.is_default is (source is ConfigSource.DEFAULT_CONFIG)


def test_a_described_value_is_always_the_value_in_effect() -> None:
    broker = broker_config({"log.roll.hours": "2", "compression.type": "lz4"})
    overrides = {"max.message.bytes": "77"}
    config = topic_config(broker, overrides)
    described = describe_topic(broker, overrides)
    assert set(described) >= set(TOPIC_SETTINGS)
    for name, setting in TOPIC_SETTINGS.items():
        assert described[name].value == setting.format(getattr(config, setting.attribute))


def test_a_described_broker_setting_without_a_value_is_null_and_default() -> None:
    described = describe_broker(broker_config({"log.retention.hours": "2"}))
    assert (described["log.retention.ms"].value, described["log.retention.ms"].source) == (
        None,
        ConfigSource.DEFAULT_CONFIG,
    )
    assert described["log.retention.hours"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert described["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert set(described) >= set(BROKER_SETTINGS)


def test_a_value_given_to_the_constructor_counts_as_the_brokers_own() -> None:
    described = describe_broker(BrokerConfig(node_id=9))["node.id"]
    assert (described.value, described.source) == ("9", ConfigSource.STATIC_BROKER_CONFIG)


def test_the_configuration_page_is_what_the_settings_say() -> None:
    assert make_config_docs.PAGE.read_text() == make_config_docs.render(), (
        "run tools/make_config_docs.py"
    )
