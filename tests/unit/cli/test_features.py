import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.update_features import UpdateFeaturesRequest
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.test_features import FeatureBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> FeatureBrokers:
    brokers = FeatureBrokers()
    use(brokers, monkeypatch, "features")
    return brokers


def test_features_are_shown(brokers: FeatureBrokers) -> None:
    assert invoke("features", "describe").stdout.splitlines() == [
        "FEATURE              LEVEL         MIN           MAX",
        "metadata.version     29 (4.2-IV1)  17 (3.7-IV2)  30 (4.3-IV0)",
        "transaction.version  0             0             2",
    ]
    found = document(invoke("features", "describe", "--json"))
    assert found["epoch"] == 77
    assert found["features"][0] == {"name": "metadata.version", "level": 29, "min": 17, "max": 30}


def test_levels_are_raised_and_lowered(brokers: FeatureBrokers) -> None:
    result = invoke("features", "upgrade", "metadata.version=4.3-IV0", "transaction.version=2")
    assert result.stdout.splitlines() == [
        "metadata.version is set to 30 (4.3-IV0)",
        "transaction.version is set to 2",
    ]
    result = invoke("features", "downgrade", "transaction.version=1", "--dry-run", "--unsafe")
    assert result.stdout == "transaction.version can be set to 1\n"
    raised, lowered = brokers.sent(UpdateFeaturesRequest)
    levels = [
        (feature_update.feature, feature_update.max_version_level)
        for feature_update in raised.feature_updates
    ]
    assert levels == [("metadata.version", 30), ("transaction.version", 2)]
    assert (raised.feature_updates[0].upgrade_type, raised.validate_only) == (1, False)
    assert (lowered.feature_updates[0].upgrade_type, lowered.validate_only) == (3, True)
    told = document(invoke("features", "upgrade", "transaction.version=2", "--json"))
    assert told == {"changed": True, "features": {"transaction.version": 2}}


def test_what_is_refused_is_told(brokers: FeatureBrokers) -> None:
    brokers.answers = [(ErrorCode.INVALID_UPDATE_VERSION, "broker 2 supports only versions 0-1")]
    result = invoke("features", "upgrade", "transaction.version=2")
    assert result.exit_code == 1
    assert "broker 2 supports only versions 0-1" in result.stderr
    for wrong in ("transaction.version", "transaction.version=x", "metadata.version=9.9"):
        assert invoke("features", "upgrade", wrong).exit_code == 2
