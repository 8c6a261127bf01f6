"""UpdateFeatures: raising and lowering feature levels (KIP-584, KIP-778).

While eligible leader replicas are kept, the controller and every leader must agree on
`min.insync.replicas`: a leader that commits with fewer replicas in sync than the controller assumes
could commit records that eligible replicas lack. So the cluster-wide value is then a record, and
brokers have no value of their own, as in Kafka. Unlike Kafka: without a record the controller
assumes 1, the least that a leader can have, so a default of 1 needs no record.
"""

from collections.abc import Mapping
from enum import IntEnum

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import MIN_ISR_SETTING, elr_removals
from headrace.metadata.features import (
    ELR_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    SUPPORTED,
    Ranges,
    bootstrap_records,
    levels_of,
    loses_metadata,
    missing_dependency,
    supported_ranges,
    unsupported_reason,
)
from headrace.metadata.image import ConfigResourceType, Image
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.metadata_records import ConfigRecord, FeatureLevelRecord
from headrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.protocol.schema import Message

_FAILED = "no feature was changed, because of this one: "


class UpgradeType(IntEnum):
    """Kafka's codes for the direction of an update."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


_UPGRADE_TYPES = frozenset(UpgradeType)


def bootstrap(image: Image, *, min_insync_replicas: int) -> tuple[Message, ...]:
    """The first records of a log without feature levels; none for any other log.

    `min_insync_replicas` is that of the controller's own configuration.
    """
    is_new = not image.brokers and not image.topics
    levels = bootstrap_records(image.features, new_cluster=is_new)
    if not any(record.name == ELR_VERSION for record in levels):
        return levels
    return (*levels, *_min_isr_records(image, min_insync_replicas))


def _min_isr_records(image: Image, min_insync_replicas: int) -> list[ConfigRecord]:
    """The records that make all brokers agree on the default of `min.insync.replicas`."""
    records = []
    if min_insync_replicas > 1 and MIN_ISR_SETTING not in image.config_of(
        ConfigResourceType.BROKER, ""
    ):
        records.append(_min_isr_record("", str(min_insync_replicas)))
    records += [
        _min_isr_record(resource.name, None)
        for resource, settings in image.configs.items()
        if resource.resource_type == ConfigResourceType.BROKER
        and resource.name
        and MIN_ISR_SETTING in settings
    ]
    return records


def _min_isr_record(broker: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigResourceType.BROKER,
        resource_name=broker,
        name=MIN_ISR_SETTING,
        value=value,
    )


def update_features(
    image: Image,
    request: UpdateFeaturesRequest,
    *,
    node_id: int,
    kraft_version: int,
    controllers: Mapping[int, Ranges | None],
    min_insync_replicas: int = 1,
) -> CommandResult[UpdateFeaturesResponse]:
    """Change feature levels, all of the request or none.

    `node_id` is this controller. `controllers` are the other voters with the ranges they support,
    None if a voter could not be asked; voters that are registered brokers may be left out. A change
    of `kraft.version` is only checked here: see `raises_kraft_version`.
    `min_insync_replicas` is that of the controller's own configuration.
    """
    levels = {**levels_of(image.features), KRAFT_VERSION: kraft_version}
    changes: dict[str, int] = {}
    # The last update of a feature counts, as in Kafka.
    last_updates = {update.feature: update for update in request.feature_updates}
    for update in last_updates.values():
        try:
            _check_type(update, levels)
            _check_support(image, update, node_id, controllers)
            _check_downgrade(update, levels)
        except KafkaError as error:
            return _refused(update.feature, update.max_version_level, error)
        if update.max_version_level != levels.get(update.feature, 0):
            changes[update.feature] = update.max_version_level
    missing = missing_dependency({**levels, **changes})
    if missing is not None:
        feature, reason = missing
        return _refused(feature, {**levels, **changes}[feature], _invalid(reason))
    records: list[Message] = [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in changes.items()
        if name != KRAFT_VERSION
    ]
    if ELR_VERSION in changes:
        is_raised = changes[ELR_VERSION] > 0
        records[:0] = (
            _min_isr_records(image, min_insync_replicas) if is_raised else elr_removals(image)
        )
    response = UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in request.feature_updates
        ],
    )
    return CommandResult(() if request.validate_only else tuple(records), response)


def _refused(feature: str, level: int, error: KafkaError) -> CommandResult[UpdateFeaturesResponse]:
    text = f"{_FAILED}{feature} cannot be set to {level}: {error.detail}"
    return CommandResult((), UpdateFeaturesResponse(error_code=error.code, error_message=text))


def raises_kraft_version(request: UpdateFeaturesRequest, kraft_version: int) -> bool:
    """Whether a valid request raises `kraft.version`, which moves the voters into the log."""
    return any(
        update.feature == KRAFT_VERSION and update.max_version_level > kraft_version
        for update in request.feature_updates
    )


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)


def _check_type(update: FeatureUpdateKey, levels: Mapping[str, int]) -> None:
    level, current = update.max_version_level, levels.get(update.feature, 0)
    upgrade_type = update.upgrade_type
    if update.allow_downgrade:  # Version 0 of the request has this in place of types.
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if level < current else UpgradeType.UPGRADE
    if upgrade_type not in _UPGRADE_TYPES:
        raise _invalid(f"the upgrade type {upgrade_type} is not known")
    if level < 0:
        raise _invalid("a level is not below 0")
    if level < current and upgrade_type == UpgradeType.UPGRADE:
        raise _invalid(f"its level is {current}; a lower one needs a safe or unsafe downgrade")
    if level > current and upgrade_type != UpgradeType.UPGRADE:
        raise _invalid(f"its level is {current}; a downgrade does not raise it")


def _check_support(
    image: Image,
    update: FeatureUpdateKey,
    node_id: int,
    controllers: Mapping[int, Ranges | None],
) -> None:
    """Raise KafkaError unless every known node supports the level."""
    name, level = update.feature, update.max_version_level
    ranges_by_node = {f"controller {node_id}": SUPPORTED}
    ranges_by_node |= {
        f"broker {broker.broker_id}": supported_ranges(broker.features)
        for broker in image.brokers.values()
    }
    for controller_id, ranges in controllers.items():
        if ranges is None:
            raise _invalid(f"controller {controller_id} does not tell what it supports")
        ranges_by_node[f"controller {controller_id}"] = ranges
    for node, ranges in ranges_by_node.items():
        reason = unsupported_reason(ranges, name, level)
        if reason is not None:
            raise _invalid(f"{node} {reason}")


def _check_downgrade(update: FeatureUpdateKey, levels: Mapping[str, int]) -> None:
    name, level = update.feature, update.max_version_level
    current = levels.get(name, 0)
    if level >= current:
        return
    if name == KRAFT_VERSION:
        raise _invalid("voters that are in the log stay there")
    if name == METADATA_VERSION and loses_metadata(current, level):
        # Kafka has no unsafe downgrade of it either (KAFKA-13896).
        raise _invalid(f"metadata that level {current} can express may be lost")
