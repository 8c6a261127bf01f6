from typing import Any

import pytest

from headrace.client.admin.features import FeatureDescription, Features
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.api_versions import (
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from headrace.protocol.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.unit.client.admin.fakes import AdminBrokers


class FeatureBrokers(AdminBrokers):
    """Brokers that support two features, of which one is on."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = list[tuple[ErrorCode, str | None]]()

    def _ApiVersions(self, node: int, request: Any) -> ApiVersionsResponse:
        on = FinalizedFeatureKey(
            name="metadata.version", min_version_level=29, max_version_level=29
        )
        return ApiVersionsResponse(
            supported_features=[
                SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2),
                SupportedFeatureKey(name="metadata.version", min_version=17, max_version=30),
            ],
            finalized_features=[on],
            finalized_features_epoch=77,
        )

    def _UpdateFeatures(self, node: int, request: Any) -> UpdateFeaturesResponse:
        code, message = self.answers.pop(0) if self.answers else (ErrorCode.NONE, None)
        return UpdateFeaturesResponse(error_code=code, error_message=message)


def test_features_are_described() -> None:
    brokers = FeatureBrokers()
    assert brokers.admin(lambda admin: admin.describe_features()) == Features(
        {
            "metadata.version": FeatureDescription(17, 30, 29),
            "transaction.version": FeatureDescription(0, 2, 0),
        },
        epoch=77,
    )


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, 1), ({"downgrade": True}, 2), ({"downgrade": True, "unsafe": True}, 3)],
)
def test_levels_are_set_again_if_the_controller_moved(options: Any, kind: int) -> None:
    brokers = FeatureBrokers()
    brokers.answers = [(ErrorCode.NOT_CONTROLLER, None)]
    brokers.admin(lambda admin: admin.update_features({"transaction.version": 1}, **options))
    first, second = brokers.sent(UpdateFeaturesRequest)
    assert first == second
    [update] = second.feature_updates
    assert (update.feature, update.max_version_level, update.upgrade_type) == (
        "transaction.version",
        1,
        kind,
    )
    assert not second.validate_only


def test_a_refused_level_is_an_error_with_its_reason() -> None:
    brokers = FeatureBrokers()
    brokers.answers = [(ErrorCode.INVALID_UPDATE_VERSION, "broker 2 supports only versions 0-1")]
    with pytest.raises(KafkaError, match="broker 2 supports only versions 0-1"):
        brokers.admin(lambda admin: admin.update_features({"a": 1}, validate_only=True))
    assert brokers.sent(UpdateFeaturesRequest)[0].validate_only


def test_levels_that_make_no_sense_are_not_sent() -> None:
    brokers = FeatureBrokers()
    with pytest.raises(ValueError, match="the level of a"):
        brokers.admin(lambda admin: admin.update_features({"a": -1}))
    with pytest.raises(ValueError, match="downgrade=True"):
        brokers.admin(lambda admin: admin.update_features({"a": 1}, unsafe=True))
