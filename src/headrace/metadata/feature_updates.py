"""UpdateFeatures: raising and lowering feature levels (KIP-584, KIP-778).

While eligible leader replicas are kept, the controller and every leader must agree on
`min.insync.replicas`: a leader that commits with fewer replicas in sync than the controller counts
with would leave eligible ones behind. So the cluster-wide value is a record then, and brokers have
none of their own, as in Kafka. Unlike Kafka: without a record the controller counts with 1, which
no leader goes below, so a default of 1 needs none.
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
    ranges_told,
    unsupported,
)
from headrace.metadata.image import Image, ResourceType
from headrace.metadata.records import Result
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
    """Kafka's codes for what an update may do."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


_UPGRADE_TYPES = frozenset(UpgradeType)


def bootstrap(image: Image, *, min_insync_replicas: int) -> tuple[Message, ...]:
    """The records that a log without feature levels needs before anything else.

    `min_insync_replicas` is the one of the controller's own configuration.
    """
    is_new = not image.brokers and not image.topics
    levels = bootstrap_records(image.features, new_cluster=is_new)
    if not any(one.name == ELR_VERSION for one in levels):
        return levels
    return (*levels, *_min_isr_records(image, min_insync_replicas))


def _min_isr_records(image: Image, min_insync_replicas: int) -> list[ConfigRecord]:
    """What makes all brokers agree on the default of `min.insync.replicas`."""
    records = []
    if min_insync_replicas > 1 and MIN_ISR_SETTING not in image.config_of(ResourceType.BROKER, ""):
        records.append(_min_isr_record("", str(min_insync_replicas)))
    records += [
        _min_isr_record(resource.name, None)
        for resource, settings in image.configs.items()
        if resource.resource_type == ResourceType.BROKER
        and resource.name
        and MIN_ISR_SETTING in settings
    ]
    return records


def _min_isr_record(broker: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name=broker, name=MIN_ISR_SETTING, value=value
    )


def update_features(
    image: Image,
    request: UpdateFeaturesRequest,
    *,
    node_id: int,
    kraft_version: int,
    controllers: Mapping[int, Ranges | None],
    min_insync_replicas: int = 1,
) -> Result[UpdateFeaturesResponse]:
    """Change feature levels, all of the request or none.

    `node_id` is this controller. `controllers` are the other voters with the ranges they support,
    None if one could not be asked; those that are brokers too need not be among them. What a
    request does to `kraft.version` is only checked here: see `raises_kraft_version`.
    `min_insync_replicas` is the one of the controller's own configuration.
    """
    levels = {**levels_of(image.features), KRAFT_VERSION: kraft_version}
    changes: dict[str, int] = {}
    # Of two updates of one feature the last one counts, as in Kafka.
    for update in {one.feature: one for one in request.feature_updates}.values():
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
            UpdatableFeatureResult(feature=one.feature, error_message=None)
            for one in request.feature_updates
        ],
    )
    return Result(() if request.validate_only else tuple(records), response)


def _refused(feature: str, level: int, error: KafkaError) -> Result[UpdateFeaturesResponse]:
    text = f"{_FAILED}{feature} cannot be set to {level}: {error.detail}"
    return Result((), UpdateFeaturesResponse(error_code=error.code, error_message=text))


def raises_kraft_version(request: UpdateFeaturesRequest, kraft_version: int) -> bool:
    """Whether a request that was found valid wants the voters in the log, where they are not."""
    return any(
        one.feature == KRAFT_VERSION and one.max_version_level > kraft_version
        for one in request.feature_updates
    )


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)


def _check_type(update: FeatureUpdateKey, levels: Mapping[str, int]) -> None:
    level, current = update.max_version_level, levels.get(update.feature, 0)
    upgrade_type = update.upgrade_type
    if update.allow_downgrade:  # Of version 0, which has no types.
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
    """KafkaError unless every node that is known supports the level."""
    name, level = update.feature, update.max_version_level
    told = {f"controller {node_id}": SUPPORTED}
    told |= {f"broker {one.broker_id}": ranges_told(one.features) for one in image.brokers.values()}
    for controller_id, ranges in controllers.items():
        if ranges is None:
            raise _invalid(f"controller {controller_id} does not tell what it supports")
        told[f"controller {controller_id}"] = ranges
    for node, ranges in told.items():
        reason = unsupported(ranges, name, level)
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
