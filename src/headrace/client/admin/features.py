"""Feature levels of a cluster: the levels brokers support, and the finalized ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from headrace.client.admin.admin_requests import ControllerRequests, timeout_ms
from headrace.client.cluster import ClusterClient
from headrace.client.errors import check
from headrace.errors import Subject
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_SOFTWARE = {"client_software_name": "headrace", "client_software_version": "admin"}


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """The supported levels of a feature on a broker, and the cluster's finalized level.

    Level 0 means that the feature is off.
    """

    min_level: int
    max_level: int
    level: int


@dataclass(frozen=True, slots=True)
class Features:
    """All features that a broker supports, by name, as of an offset of the metadata log."""

    features: Mapping[str, FeatureDescription]
    epoch: int


class UpdateFeaturesOptions(TypedDict, total=False):
    """The direction and mode of a change of feature levels; every flag is False by default."""

    # Lower the levels; with `unsafe` even if metadata is lost by it.
    downgrade: bool
    unsafe: bool
    # Change nothing, but raise the error that the change would give.
    validate_only: bool


async def describe_features(cluster: ClusterClient) -> Features:
    """The features as reported by the controller, or any broker if no controller is known."""
    target = ControllerRequests(cluster)
    deadline = cluster.deadline()

    async def attempt() -> Features:
        response = await target.send(ApiVersionsRequest(**_SOFTWARE), deadline)
        check(response.error_code, None)
        levels = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }
        features = {
            feature.name: FeatureDescription(
                feature.min_version, feature.max_version, levels.get(feature.name, 0)
            )
            for feature in sorted(response.supported_features, key=lambda feature: feature.name)
        }
        return Features(features, response.finalized_features_epoch)

    return await cluster.retrying(attempt, deadline)


async def update_features(
    cluster: ClusterClient,
    levels: Mapping[str, int],
    *,
    downgrade: bool = False,
    unsafe: bool = False,
    validate_only: bool = False,
) -> None:
    """Set feature levels, all or none. Idempotent: setting a level again changes nothing."""
    if unsafe and not downgrade:
        raise ValueError("unsafe=True is for downgrades; say downgrade=True too")
    kind = _UPGRADE
    if downgrade:
        kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
    request = UpdateFeaturesRequest(
        timeout_ms=timeout_ms(cluster),
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    target = ControllerRequests(cluster)
    deadline = cluster.deadline()

    async def attempt() -> None:
        response = await target.send(request, deadline)
        check(response.error_code, response.error_message)
        for result in response.results:
            check(result.error_code, result.error_message, Subject("feature", result.feature))

    await cluster.retrying(attempt, deadline)
