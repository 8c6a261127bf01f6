"""Feature levels: what a cluster begins with, who may change them, and what they change."""

from collections.abc import Mapping

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.feature_updates import (
    UpgradeType,
    raises_kraft_version,
    update_features,
)
from headrace.metadata.features import (
    BOOTSTRAP_LEVELS,
    METADATA_VERSION,
    NEW_CLUSTER_LEVELS,
    SUPPORTED,
    Ranges,
    VersionRange,
    bootstrap_records,
    levels_of,
)
from headrace.metadata.image import Image
from headrace.metadata.records import MetadataError, decode_record, encode_record
from headrace.protocol.messages.broker_registration import Feature
from headrace.protocol.messages.metadata_records import (
    BrokerFeature,
    FeatureLevelRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from headrace.protocol.schema import Message
from tests.unit.metadata.clusters import registration
from tests.unit.metadata.test_brokers import register

ALL = {name: (entry.min, entry.max) for name, entry in SUPPORTED.items()}
UPGRADE, SAFE, UNSAFE = UpgradeType


def level(name: str, value: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=name, feature_level=value)


def broker(broker_id: int, ranges: Mapping[str, tuple[int, int]]) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in ranges.items()
        ],
    )


def image_with(metadata: int, transactions: int, *records: Message) -> Image:
    levels = [level(METADATA_VERSION, metadata), level("transaction.version", transactions)]
    return Image().apply([*levels, broker(1, ALL), *records])


def update(
    image: Image,
    *updates: tuple[str, int, int],
    validate_only: bool = False,
    kraft_version: int = 0,
    controllers: Mapping[int, Ranges | None] | None = None,
) -> tuple[int, str | None, Image]:
    """The code, the message, and the image after an update."""
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=value, upgrade_type=kind)
            for name, value, kind in updates
        ],
        validate_only=validate_only,
    )
    result = update_features(
        image,
        request,
        node_id=1,
        kraft_version=kraft_version,
        controllers=controllers or {},
    )
    return (
        result.response.error_code,
        result.response.error_message,
        image.apply(result.records),
    )


def test_a_log_without_levels_has_those_it_is_given_at_the_next_registration() -> None:
    image = Image()
    assert levels_of(image.features) == BOOTSTRAP_LEVELS
    for new_cluster, levels in ((False, BOOTSTRAP_LEVELS), (True, NEW_CLUSTER_LEVELS)):
        records = bootstrap_records(image.features, new_cluster=new_cluster)
        assert records[0].name == METADATA_VERSION, "Kafka's readers want it first"
        after = image.apply(records)
        assert after.features == levels
        assert after.has_elr == new_cluster
        assert bootstrap_records(after.features, new_cluster=new_cluster) == ()


def test_levels_are_lowered_and_raised() -> None:
    code, message, after = update(image_with(30, 2), ("transaction.version", 1, SAFE))
    assert (code, message, after.features["transaction.version"]) == (0, None, 1)
    code, _, after = update(after, ("transaction.version", 2, UPGRADE))
    assert (code, after.features["transaction.version"]) == (0, 2)
    code, _, after = update(after, ("transaction.version", 0, UNSAFE))
    assert (code, "transaction.version" in after.features) == (0, False)


def test_a_trial_changes_nothing() -> None:
    image = image_with(30, 2)
    code, _, after = update(image, ("transaction.version", 0, SAFE), validate_only=True)
    assert (code, after) == (0, image)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("transaction.version", 1, UPGRADE), "its level is 2; a lower one needs a safe"),
        (("transaction.version", 2, 9), "the upgrade type 9 is not known"),
        (("transaction.version", -1, SAFE), "a level is not below 0"),
        (("transaction.version", 3, UPGRADE), "controller 1 supports only versions 0-2"),
        (("metadata.version", 31, UPGRADE), "controller 1 supports only versions 17-30"),
        (("metadata.version", 16, SAFE), "controller 1 supports only versions 17-30"),
        (("share.version", 1, UPGRADE), "controller 1 does not support this feature"),
        (("metadata.version", 29, SAFE), "metadata that level 30 can express may be lost"),
        (("metadata.version", 29, UNSAFE), "metadata that level 30 can express may be lost"),
        (("no.such", 1, UPGRADE), "controller 1 does not support this feature"),
    ],
)
def test_updates_that_cannot_be_are_refused_whole(
    change: tuple[str, int, int], reason: str
) -> None:
    image = image_with(30, 2)
    code, message, after = update(image, ("transaction.version", 1, SAFE), change)
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert message is not None and reason in message and change[0] in message
    assert after == image


def test_a_downgrade_does_not_raise() -> None:
    code, message, _ = update(image_with(30, 0), ("transaction.version", 1, SAFE))
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert message is not None and "a downgrade does not raise it" in message


def test_metadata_version_is_lowered_where_records_say_the_same() -> None:
    code, _, after = update(image_with(29, 2), (METADATA_VERSION, 24, SAFE))
    assert (code, after.metadata_version) == (0, 24)
    code, _, _ = update(after, (METADATA_VERSION, 22, SAFE))
    assert code == ErrorCode.INVALID_UPDATE_VERSION


def test_every_broker_must_support_a_level() -> None:
    old = {**ALL, "transaction.version": (0, 1), METADATA_VERSION: (17, 29)}
    image = image_with(29, 0, broker(2, old))
    code, message, _ = update(image, ("transaction.version", 2, UPGRADE))
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert message is not None and "broker 2 supports only versions 0-1" in message
    assert update(image, ("transaction.version", 1, UPGRADE))[0] == 0
    assert update(image, (METADATA_VERSION, 30, UPGRADE))[0] == ErrorCode.INVALID_UPDATE_VERSION


def test_a_broker_of_a_version_without_levels_keeps_them_where_they_are() -> None:
    image = image_with(30, 2, broker(2, {}))
    code, message, _ = update(image, ("transaction.version", 1, SAFE))
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert message is not None and "broker 2 supports only versions 2" in message


def test_controllers_that_are_no_brokers_are_asked() -> None:
    image = image_with(30, 2)
    change = ("transaction.version", 1, SAFE)
    assert update(image, change, controllers={9: SUPPORTED})[0] == 0
    old = {"transaction.version": VersionRange(2, 2)}
    for ranges, reason in ((old, "supports only versions 2"), (None, "does not tell what")):
        code, message, _ = update(image, change, controllers={9: ranges})
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert message is not None and f"controller 9 {reason}" in message


def test_kraft_version_only_rises() -> None:
    image = image_with(30, 2)
    code, _, after = update(image, ("kraft.version", 1, UPGRADE))
    assert (code, after) == (0, image), "its records are the quorum's"
    code, message, _ = update(image, ("kraft.version", 0, SAFE), kraft_version=1)
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert message is not None and "stay there" in message
    wanted = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature="kraft.version", max_version_level=1)]
    )
    assert raises_kraft_version(wanted, 0) and not raises_kraft_version(wanted, 1)


def test_the_first_version_of_the_request_has_a_flag_for_downgrades() -> None:
    key = FeatureUpdateKey(feature="transaction.version", max_version_level=1, allow_downgrade=True)
    request = UpdateFeaturesRequest(feature_updates=[key])
    result = update_features(image_with(30, 2), request, node_id=1, kraft_version=0, controllers={})
    assert result.records == (level("transaction.version", 1),)
    assert [entry.feature for entry in result.response.results] == ["transaction.version"]


def test_a_broker_that_lacks_a_level_of_the_cluster_may_not_register() -> None:
    image = image_with(30, 2)
    request = registration(2)
    request.features = [
        Feature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in {**ALL, METADATA_VERSION: (17, 29)}.items()
    ]
    with pytest.raises(KafkaError, match=r"metadata.version at level 30.* broker 2 supports only"):
        register(image, request, offset=5)
    for feature in request.features:
        feature.max_supported_version = 30
    assert register(image, request, offset=5).response == 5


def test_a_level_that_this_version_does_not_know_stops_it() -> None:
    for name, value in ((METADATA_VERSION, 31), ("share.version", 1)):
        with pytest.raises(MetadataError, match="run one that does"):
            Image().apply([level(name, value)])


@pytest.mark.parametrize(("metadata", "register_version"), [(30, 4), (29, 3), (17, 3)])
def test_records_are_written_as_of_the_level(metadata: int, register_version: int) -> None:
    record = RegisterBrokerRecord(broker_id=1, log_dirs=[bytes(range(16))])
    stored = encode_record(record, metadata)
    assert stored[2] == register_version
    assert decode_record(stored) == record
    partition = PartitionRecord(topic_id=bytes(16), directories=[bytes(16)])
    stored = encode_record(partition, metadata)
    assert (stored[2], decode_record(stored)) == (2 if metadata >= 23 else 1, partition)
