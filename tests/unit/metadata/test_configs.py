"""Changing configs: every operation, every refusal."""

from collections.abc import Mapping

import pytest

from headrace.config import broker_config
from headrace.errors import ErrorCode
from headrace.metadata.configs import ConfigOperation, alter_configs, incremental_alter_configs
from headrace.metadata.image import ConfigKey, ConfigResourceType, Image
from headrace.protocol.messages import alter_configs as legacy
from headrace.protocol.messages import incremental_alter_configs as incremental
from headrace.protocol.messages.metadata_records import ConfigRecord
from tests.unit.metadata.clusters import broker_records, told, topic_records

TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = ConfigOperation

Change = tuple[str, int, str | None]


def image_with(
    topic: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
) -> Image:
    records = [*broker_records(1), *topic_records("orders", [1], configs=topic)]
    for name, value in (broker or {}).items():
        records.append(ConfigRecord(resource_type=4, resource_name="1", name=name, value=value))
    return Image().apply(records)


def resource(kind: int, name: str, *changes: Change) -> incremental.AlterConfigsResource:
    configs = [
        incremental.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    return incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def alter(image: Image, *resources: incremental.AlterConfigsResource) -> tuple[Image, list[str]]:
    """The image afterwards, and the answers as text ("" for success)."""
    request = incremental.IncrementalAlterConfigsRequest(resources=list(resources))
    result = incremental_alter_configs(image, request)
    answers = [
        told(response.error_code, response.error_message) for response in result.response.responses
    ]
    return image.apply(result.records), answers


def replace(image: Image, kind: int, name: str, **configs: str | None) -> tuple[Image, str]:
    given = [
        legacy.AlterableConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    wanted = legacy.AlterConfigsResource(resource_type=kind, resource_name=name, configs=given)
    result = alter_configs(image, legacy.AlterConfigsRequest(resources=[wanted]))
    [answer] = result.response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return image.apply(result.records), told(answer.error_code, answer.error_message)


def topic_settings(image: Image) -> Mapping[str, str]:
    return image.config_of(ConfigResourceType.TOPIC, "orders")


def test_settings_are_set_and_deleted_and_others_stay() -> None:
    before = image_with(topic={"retention.ms": "1", "flush.ms": "2"})
    after, answers = alter(
        before,
        resource(
            TOPIC,
            "orders",
            ("retention.ms", DELETE, None),
            ("segment.ms", SET, "3"),
        ),
    )
    assert answers == [""]
    assert topic_settings(after) == {"flush.ms": "2", "segment.ms": "3"}


def test_a_broker_and_the_whole_cluster_have_settings_of_their_own() -> None:
    after, answers = alter(
        image_with(),
        resource(BROKER, "1", ("message.max.bytes", SET, "5")),
        resource(BROKER, "", ("message.max.bytes", SET, "6")),
    )
    assert answers == ["", ""]
    assert after.broker_overrides(1) == ({"message.max.bytes": "5"}, {"message.max.bytes": "6"})


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        (TOPIC, "orders", {"compression.type": "gzip", "compression.gzip.level": "9"}),
        (TOPIC, "orders", {"preallocate": "true", "local.retention.ms": "-2"}),
        (TOPIC, "orders", {"remote.storage.enable": "false", "remote.log.copy.disable": "true"}),
        (BROKER, "1", {"num.io.threads": "16", "background.threads": "4"}),
        (BROKER, "", {"log.cleaner.threads": "2", "num.network.threads": "6"}),
        (BROKER, "1", {"replica.alter.log.dirs.io.max.bytes.per.second": "1000"}),
        (BROKER, "1", {"listener.name.internal.ssl.keystore.location": "/a"}),
        (GROUP, "g", {"consumer.session.timeout.ms": "50000", "share.auto.offset.reset": "latest"}),
        (GROUP, "g", {"share.auto.offset.reset": "by_duration:PT1H30M"}),
        (METRICS, "m", {"interval.ms": "1000", "match": "client_id=a.*", "metrics": "org.a,org.b"}),
    ],
)
def test_every_name_that_kafka_accepts_is_stored(
    kind: int, name: str, settings: dict[str, str]
) -> None:
    changes = [(key, SET, value) for key, value in settings.items()]
    after, answers = alter(image_with(), resource(kind, name, *changes))
    assert answers == [""]
    assert after.configs == {ConfigKey(kind, name): settings}


def test_a_groups_bounds_are_those_of_the_controllers_own_settings() -> None:
    config = broker_config({"group.consumer.min.session.timeout.ms": "1000"})
    change = resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "6000"))
    request = incremental.IncrementalAlterConfigsRequest(resources=[change])
    [answer] = incremental_alter_configs(image_with(), request, config).response.responses
    assert answer.error_code == 0


def test_answers_name_their_resources_in_order() -> None:
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[resource(BROKER, ""), resource(TOPIC, "gone"), resource(TOPIC, "orders")]
    )
    answers = incremental_alter_configs(image_with(), request).response.responses
    assert [
        (answer.resource_type, answer.resource_name, answer.error_code) for answer in answers
    ] == [
        (BROKER, "", 0),
        (TOPIC, "gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "orders", 0),
    ]


def test_setting_what_is_already_set_makes_no_record() -> None:
    image = image_with(topic={"retention.ms": "1"})
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            resource(TOPIC, "orders", ("retention.ms", SET, "1"), ("flush.ms", DELETE, None))
        ]
    )
    assert incremental_alter_configs(image, request).records == ()


def test_validate_only_answers_and_records_nothing() -> None:
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            resource(TOPIC, "orders", ("retention.ms", SET, "1")),
            resource(TOPIC, "gone", ("retention.ms", SET, "1")),
        ],
        validate_only=True,
    )
    result = incremental_alter_configs(image_with(), request)
    assert result.records == ()
    assert [response.error_code for response in result.response.responses] == [0, 3]


def test_a_list_can_be_appended_to_and_subtracted_from() -> None:
    image = image_with()
    after, answers = alter(image, resource(TOPIC, "orders", ("cleanup.policy", APPEND, "delete")))
    assert answers == [""]
    assert topic_settings(after) == {"cleanup.policy": "delete"}
    both, answers = alter(image, resource(TOPIC, "orders", ("cleanup.policy", APPEND, "compact")))
    assert (answers, topic_settings(both)) == ([""], {"cleanup.policy": "delete,compact"})
    none, answers = alter(image, resource(TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete")))
    assert (answers, topic_settings(none)) == ([""], {"cleanup.policy": ""})
    again, answers = alter(none, resource(TOPIC, "orders", ("cleanup.policy", APPEND, "compact")))
    assert (answers, topic_settings(again)) == ([""], {"cleanup.policy": "compact"})
    after, answers = alter(
        after, resource(TOPIC, "orders", ("cleanup.policy", SUBTRACT, "compact, other"))
    )
    assert (answers, topic_settings(after)) == ([""], {"cleanup.policy": "delete"})


@pytest.mark.parametrize(
    ("kind", "name", "change", "answer"),
    [
        (TOPIC, "gone", ("retention.ms", SET, "1"), "UNKNOWN_TOPIC_OR_PARTITION: topic gone does"),
        (TOPIC, "", ("retention.ms", SET, "1"), "INVALID_REQUEST: topics have no cluster-wide"),
        (BROKER, "2", ("message.max.bytes", SET, "1"), "BROKER_ID_NOT_REGISTERED: no broker has"),
        (BROKER, "01", ("message.max.bytes", SET, "1"), "BROKER_ID_NOT_REGISTERED: no broker"),
        (BROKER, "one", ("message.max.bytes", SET, "1"), "INVALID_REQUEST: no broker has the id"),
        (8, "1", ("x", SET, "1"), "INVALID_REQUEST: resources of type 8 have no configs here"),
        (TOPIC, "orders", ("retention.sec", SET, "1"), "INVALID_CONFIG: unknown setting 'reten"),
        (TOPIC, "orders", ("retention.sec", APPEND, "1"), "INVALID_CONFIG: unknown setting"),
        (TOPIC, "orders", ("retention.ms", SET, "-2"), "INVALID_CONFIG: retention.ms cannot be"),
        (TOPIC, "orders", ("retention.ms", SET, None), "INVALID_REQUEST: retention.ms has no va"),
        (TOPIC, "orders", ("cleanup.policy", APPEND, None), "INVALID_REQUEST: cleanup.policy has"),
        (TOPIC, "orders", ("retention.ms", APPEND, "1"), "INVALID_CONFIG: retention.ms is not a"),
        (TOPIC, "orders", ("retention.ms", SUBTRACT, "1"), "INVALID_CONFIG: retention.ms is not"),
        (TOPIC, "orders", ("retention.ms", 9, "1"), "INVALID_REQUEST: retention.ms: there is no"),
        (BROKER, "1", ("node.id", SET, "2"), "INVALID_REQUEST: node.id cannot change while"),
        (BROKER, "1", ("log.retention.hours", SET, "2"), "INVALID_REQUEST: log.retention.hours"),
        (BROKER, "", ("retention.ms", SET, "2"), "INVALID_CONFIG: unknown setting 'retention.ms'"),
        (BROKER, "1", ("log.retention.ms", SET, "0"), "INVALID_REQUEST: log.retention.ms cannot"),
        (BROKER, "1", ("num.io.threads", SET, "0"), "INVALID_REQUEST: num.io.threads cannot be"),
        (BROKER, "1", ("queued.max.requests", SET, "9"), "INVALID_REQUEST: queued.max.requests ca"),
        (BROKER, "", ("cordoned.log.dirs", SET, "/a"), "INVALID_REQUEST: cordoned.log.dirs has no"),
        (BROKER, "1", ("ssl.keystore.location", SET, "a"), "INVALID_REQUEST: ssl.keystore.locati"),
        (TOPIC, "orders", ("max.compaction.lag.ms", SET, "1"), "INVALID_CONFIG: min.compaction"),
        (TOPIC, "orders", ("remote.storage.enable", SET, "true"), "INVALID_CONFIG: remote.stora"),
        (TOPIC, "orders", ("retention.ms", SET, "1" * 2**15), "INVALID_CONFIG: retention.ms is"),
        (GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), "INVALID_REQUEST: the name of"),
        (GROUP, "g", ("session.timeout.ms", SET, "1"), "INVALID_CONFIG: unknown setting 'session"),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "44999"), "INVALID_CONFIG: consumer.se"),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "60001"), "INVALID_CONFIG: consumer.se"),
        (GROUP, "g", ("share.heartbeat.interval.ms", SET, "x"), "INVALID_CONFIG: share.heartbeat"),
        (GROUP, "g", ("share.auto.offset.reset", SET, "soon"), "INVALID_CONFIG: share.auto.offse"),
        (GROUP, "g", ("streams.num.standby.replicas", SET, "3"), "INVALID_CONFIG: streams.num.st"),
        (METRICS, "", ("interval.ms", SET, "1000"), "INVALID_REQUEST: the name of"),
        (METRICS, "m", ("interval", SET, "1000"), "INVALID_REQUEST: unknown setting 'interval'"),
        (METRICS, "m", ("interval.ms", SET, "99"), "INVALID_REQUEST: interval.ms cannot be '99'"),
        (METRICS, "m", ("match", SET, "client=a"), "INVALID_CONFIG: match cannot have 'client=a'"),
        (METRICS, "m", ("match", SET, "client_id=["), "INVALID_CONFIG: match cannot have 'client"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_with_what_to_do(
    kind: int, name: str, change: Change, answer: str
) -> None:
    before = image_with(topic={"min.compaction.lag.ms": "5"})
    neighbour = resource(GROUP, "neighbour", ("share.isolation.level", SET, "read_committed"))
    after, [refused, fine] = alter(before, resource(kind, name, change), neighbour)
    assert refused.startswith(answer)
    assert fine == ""
    changed = ConfigKey(neighbour.resource_type, neighbour.resource_name)
    assert set(after.configs) - set(before.configs) == {changed}
    assert topic_settings(after) == topic_settings(before)


def test_one_bad_setting_fails_its_whole_resource() -> None:
    before = image_with()
    after, [answer] = alter(
        before, resource(TOPIC, "orders", ("flush.ms", SET, "9"), ("segment.ms", SET, "0"))
    )
    assert answer.startswith("INVALID_CONFIG: segment.ms cannot be '0'")
    assert after == before


def test_a_setting_or_a_resource_given_twice_is_refused() -> None:
    before = image_with()
    after, answers = alter(
        before, resource(TOPIC, "orders", ("flush.ms", SET, "1"), ("flush.ms", DELETE, None))
    )
    assert (after, answers) == (before, ["INVALID_REQUEST: flush.ms is given more than once"])
    after, answers = alter(
        before,
        resource(TOPIC, "orders", ("flush.ms", SET, "1")),
        resource(TOPIC, "orders", ("segment.ms", SET, "1")),
    )
    assert after == before
    assert answers == ["INVALID_REQUEST: the request names the resource more than once"]


def test_what_is_set_can_be_deleted_even_if_nobody_knows_it_any_more() -> None:
    before = image_with(topic={"from.the.future": "1"}, broker={"node.id": "4"})
    after, answers = alter(
        before,
        resource(TOPIC, "orders", ("from.the.future", DELETE, None)),
        resource(BROKER, "1", ("node.id", DELETE, None)),
    )
    assert answers == ["", ""]
    assert after.configs == {}


def test_deleting_a_setting_that_is_not_set_succeeds_whatever_its_name() -> None:
    """`kafka-reassign-partitions` deletes every throttle there is, set or not, known or not."""
    before = image_with(broker={"leader.replication.throttled.rate": "1000"})
    after, answers = alter(
        before,
        resource(
            BROKER,
            "1",
            ("leader.replication.throttled.rate", DELETE, None),
            ("throttle.of.another.version", DELETE, None),
            ("listeners", DELETE, None),
        ),
        resource(TOPIC, "orders", ("retention.sec", DELETE, None)),
    )
    assert answers == ["", ""]
    assert after.configs == {}


def test_the_old_request_replaces_all_settings() -> None:
    before = image_with(topic={"retention.ms": "1", "flush.ms": "2"})
    after, answer = replace(before, TOPIC, "orders", flush_ms="3", segment_ms="4")
    assert answer == ""
    assert topic_settings(after) == {"flush.ms": "3", "segment.ms": "4"}
    assert topic_settings(replace(before, TOPIC, "orders")[0]) == {}


@pytest.mark.parametrize(
    ("kind", "name", "configs", "answer"),
    [
        (TOPIC, "gone", {}, "UNKNOWN_TOPIC_OR_PARTITION"),
        (TOPIC, "orders", {"flush_ms": None}, "INVALID_REQUEST: flush.ms has no value"),
        (TOPIC, "orders", {"flush_ms": "-1"}, "INVALID_CONFIG: flush.ms cannot be '-1'"),
        (TOPIC, "orders", {"flush_s": "1"}, "INVALID_CONFIG: unknown setting 'flush.s'"),
        (BROKER, "1", {"node_id": "1"}, "INVALID_REQUEST: node.id cannot change"),
    ],
)
def test_the_old_request_is_checked_like_the_new_one(
    kind: int, name: str, configs: dict[str, str | None], answer: str
) -> None:
    before = image_with(topic={"retention.ms": "1"})
    after, refused = replace(before, kind, name, **configs)
    assert refused.startswith(answer)
    assert after == before


def test_the_old_request_can_be_tried_without_effect() -> None:
    image = image_with(topic={"retention.ms": "1"})
    request = legacy.AlterConfigsRequest(
        resources=[legacy.AlterConfigsResource(resource_type=TOPIC, resource_name="orders")],
        validate_only=True,
    )
    result = alter_configs(image, request)
    assert (result.records, result.response.responses[0].error_code) == ((), 0)
