"""Eligible leader replicas (KIP-966): who has every committed record without being in sync."""

from collections.abc import Sequence

import pytest

from headrace.errors import ErrorCode
from headrace.metadata.configs import incremental_alter_configs
from headrace.metadata.elections import RECOVERING, elect_leaders
from headrace.metadata.feature_updates import UpgradeType, bootstrap, update_features
from headrace.metadata.features import ELR_VERSION, METADATA_VERSION, SUPPORTED
from headrace.metadata.image import LOST_DIRECTORY, ConfigResourceType, Image, PartitionImage
from headrace.metadata.records import decode_record, encode_record
from headrace.metadata.snapshot import image_records
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.metadata_records import (
    BrokerFeature,
    FeatureLevelRecord,
    RegisterBrokerRecord,
)
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from headrace.protocol.schema import Message
from tests.unit.metadata.active import SESSION_MS, Active
from tests.unit.metadata.clusters import directory_of
from tests.unit.metadata.test_directories import assign, lost


def active_of(*replicas: int, min_isr: int = 2, unclean: bool = False) -> Active:
    """A cluster of three brokers with one partition."""
    return Active(1, 2, 3, topics={"a": [replicas]}, min_isr=min_isr, unclean=unclean)


def partition(active: Active) -> PartitionImage:
    [found] = active.image.topics["a"].partitions
    assert not set(found.isr) & set(found.elr)
    assert not {*found.isr, *found.elr} & set(found.last_known_elr)
    # What a snapshot and the bytes of its records keep is the same.
    stored = [encode_record(record) for record in image_records(active.image)]
    assert Image().apply(map(decode_record, stored)) == active.image
    return found


def stand(active: Active) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Leader, ISR, ELR and last known ELR."""
    found = partition(active)
    return found.leader, found.isr, found.elr, found.last_known_elr


def silence(active: Active, *broker_ids: int) -> None:
    """Fence brokers by their silence, while the others are heard of."""
    others = [
        value.broker_id
        for value in active.image.brokers.values()
        if value.broker_id not in broker_ids and not value.fenced
    ]
    active.pass_ms(SESSION_MS, *others)


def test_who_leaves_a_small_isr_stays_eligible_until_it_is_large_enough_again() -> None:
    active = active_of(1, 2, 3)
    silence(active, 3)
    assert stand(active) == (1, (1, 2), (), ())
    silence(active, 2)
    assert stand(active) == (1, (1,), (2,), ())
    silence(active, 1)
    assert stand(active) == (-1, (), (1, 2), ())
    # Broker 3 was out of sync while records were committed without it.
    active.beat(3)
    assert stand(active) == (-1, (), (1, 2), ())
    active.beat(2)
    assert stand(active) == (2, (2,), (1,), ())
    assert partition(active).leader_recovery_state == 0
    active.beat(1)
    assert stand(active) == (2, (2,), (1,), ())
    active.alter(2, [2, 3])
    assert stand(active) == (2, (2, 3), (), ())


def test_a_leader_that_drops_a_follower_leaves_it_eligible_below_the_minimum() -> None:
    active = active_of(1, 2, 3)
    active.alter(1, [1, 2])
    active.alter(1, [1])
    assert stand(active) == (1, (1,), (2,), ())


def test_fewer_replicas_than_the_minimum_need_all_of_them() -> None:
    active = active_of(1, min_isr=2)
    silence(active, 1)
    assert stand(active) == (-1, (), (1,), ())
    active.beat(1)
    assert stand(active) == (1, (1,), (), ())


def test_without_the_feature_the_last_one_in_sync_stays_in_the_isr() -> None:
    active = Active(1, 2, 3, topics={"a": [[1, 2]]})
    silence(active, 2)
    silence(active, 1)
    assert stand(active) == (-1, (1,), (), ())


def test_after_a_clean_shutdown_a_broker_stays_eligible() -> None:
    active = active_of(1, 2)
    active.beat(1, want_shut_down=True)
    active.beat(2)
    active.beat(3)
    assert active.beat(1, want_shut_down=True).should_shut_down
    assert stand(active) == (2, (2,), (1,), ())
    active.register(1, incarnation=9, clean=True)
    assert stand(active) == (2, (2,), (1,), ())
    silence(active, 2)
    active.beat(1)
    assert stand(active) == (1, (1,), (2,), ())


def test_after_an_unclean_shutdown_a_broker_is_eligible_nowhere() -> None:
    active = active_of(1, 2, 3)
    active.register(1, incarnation=9)
    assert stand(active) == (2, (2, 3), (), (1,))
    active.register(2, incarnation=9)
    assert stand(active) == (3, (3,), (), (1, 2))
    active.register(3, incarnation=9)
    assert stand(active) == (-1, (), (), (1, 2, 3))
    active.beat(3)
    assert stand(active) == (-1, (), (), (1, 2, 3)), "that takes a recovery election"


def test_an_eligible_replica_that_restarts_uncleanly_is_not_eligible_any_more() -> None:
    active = active_of(1, 2)
    silence(active, 2)
    assert stand(active) == (1, (1,), (2,), ())
    active.register(2, incarnation=9)
    assert stand(active) == (1, (1,), (), (2,))
    active.beat(2)
    active.alter(1, [1, 2])
    assert stand(active) == (1, (1, 2), (), ())


def test_the_last_known_are_forgotten_when_a_leader_has_enough_in_sync() -> None:
    active = active_of(1, 2, 3)
    active.register(1, incarnation=9)
    active.alter(2, [2])
    assert stand(active) == (2, (2,), (3,), (1,))
    active.alter(2, [2, 3])
    assert stand(active) == (2, (2, 3), (), ())


@pytest.mark.parametrize("clean", [False, True])
def test_the_only_replica_leads_again_as_soon_as_it_is_back(clean: bool) -> None:
    active = active_of(1)
    active.register(1, incarnation=9, clean=clean)
    assert stand(active) == (-1, (), (1,), ())
    active.beat(1)
    assert stand(active) == (1, (1,), (), ())
    assert partition(active).leader_recovery_state == 0


def test_a_lost_replica_is_eligible_nowhere_even_as_the_last_one() -> None:
    active = active_of(1, 2, min_isr=1)
    active.alter(1, [1])
    lost(active, 1, 0)
    assert stand(active) == (-1, (), (), ())
    assert partition(active).lost_replicas == (1,)
    active = active_of(1, 2, 3)
    silence(active, 3)
    silence(active, 2)
    assert stand(active)[2] == (2,)
    lost(active, 1, 0)
    assert stand(active) == (-1, (), (2,), ())
    active.beat(2)
    assert stand(active) == (2, (2,), (), ())


def test_a_lost_replica_leaves_the_isr_of_a_cluster_without_the_feature_too() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    active.alter(1, [1])
    lost(active, 1, 0)
    assert stand(active) == (-1, (), (), ())


def test_the_only_replica_does_not_lead_while_it_is_lost() -> None:
    active = active_of(1, unclean=True)
    lost(active, 1, 0)
    active.beat(1)
    assert stand(active) == (-1, (), (1,), ())
    assign(active, 1, directory_of(1), {"a": [0]})
    assert stand(active) == (1, (1,), (), ())


def test_no_isr_has_a_lost_replica() -> None:
    active = active_of(1, 2, 3)
    lost(active, 3, 0)
    assert active.alter(1, [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    assign(active, 3, directory_of(3), {"a": [0]})
    assert active.alter(1, [1, 2, 3]).error_code == 0


def test_a_broker_that_wants_to_be_fenced_stays_so() -> None:
    active = active_of(1, 2)
    active.register(2, incarnation=9)
    assert active.beat(2, want_fence=True).is_fenced
    assert assign(active, 2, LOST_DIRECTORY, {"a": [0]}) == [0]
    assert not active.beat(2).is_fenced
    assert stand(active)[:2] == (1, (1,))


def unclean_election(active: Active) -> int:
    request = ElectLeadersRequest(election_type=1, topic_partitions=None)
    response = active.commit(elect_leaders(active.image, request, unclean_by_default=False))
    [topic] = response.replica_election_results
    return topic.partition_result[0].error_code


def test_an_unclean_election_prefers_the_last_known() -> None:
    active = active_of(1, 2, 3)
    silence(active, 1)
    for broker_id in (2, 3):
        active.register(broker_id, incarnation=9)
    for broker_id in (1, 3, 2):
        active.beat(broker_id)
    assert stand(active) == (-1, (), (), (2, 3))
    assert unclean_election(active) == 0
    assert stand(active) == (2, (2,), (), ())
    assert partition(active).leader_recovery_state == RECOVERING


def test_a_topic_that_allows_it_has_an_unclean_leader_at_once() -> None:
    active = active_of(1, 2, unclean=True)
    silence(active, 1)
    active.register(2, incarnation=9)
    active.beat(2)
    assert stand(active) == (2, (2,), (), ())
    assert partition(active).leader_recovery_state == RECOVERING


def alter_min_isr(
    active: Active,
    value: str | None,
    kind: ConfigResourceType = ConfigResourceType.TOPIC,
    name: str = "a",
) -> int:
    setting = AlterableConfig(
        name="min.insync.replicas", config_operation=0 if value else 1, value=value
    )
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[setting])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [answer] = active.commit(incremental_alter_configs(active.image, request)).responses
    return answer.error_code


@pytest.mark.parametrize(
    ("kind", "name"), [(ConfigResourceType.TOPIC, "a"), (ConfigResourceType.BROKER, "")]
)
def test_another_minimum_ends_what_was_eligible_by_the_one_before(
    kind: ConfigResourceType, name: str
) -> None:
    active = active_of(1, 2, 3)
    active.register(3, incarnation=9)
    silence(active, 2)
    assert stand(active) == (1, (1,), (2,), (3,))
    assert alter_min_isr(active, "1", kind, name) == 0
    assert stand(active) == (1, (1,), (), ())


def test_where_nobody_is_in_sync_the_eligible_stay_so() -> None:
    active = active_of(1, 2)
    silence(active, 1)
    silence(active, 2)
    assert stand(active) == (-1, (), (1, 2), ())
    assert alter_min_isr(active, "1") == 0
    assert stand(active) == (-1, (), (1, 2), ())


def test_leaders_and_controller_agree_on_the_minimum() -> None:
    active = active_of(1, 2, min_isr=2)
    settings = active.image.config_of(ConfigResourceType.BROKER, "")
    assert settings == {"min.insync.replicas": "2"}
    assert alter_min_isr(active, "1", ConfigResourceType.BROKER, "1") == ErrorCode.INVALID_CONFIG
    assert alter_min_isr(active, None, ConfigResourceType.BROKER, "") == ErrorCode.INVALID_CONFIG
    assert alter_min_isr(active, "3", ConfigResourceType.BROKER, "") == 0
    assert alter_min_isr(active, None, ConfigResourceType.TOPIC, "a") == 0


def set_level(active: Active, level: int, *, min_isr: int = 2) -> str | None:
    kind = UpgradeType.UPGRADE if level else UpgradeType.SAFE_DOWNGRADE
    key = FeatureUpdateKey(feature=ELR_VERSION, max_version_level=level, upgrade_type=kind)
    result = update_features(
        active.image,
        UpdateFeaturesRequest(feature_updates=[key]),
        node_id=1,
        kraft_version=0,
        controllers={},
        min_insync_replicas=min_isr,
    )
    active.commit(result)
    return result.response.error_message


def telling_features(*broker_ids: int) -> Sequence[Message]:
    """Registrations of brokers of this version, as they are in the log."""
    return [
        RegisterBrokerRecord(
            broker_id=broker_id,
            broker_epoch=broker_id,
            fenced=False,
            features=[
                BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED.items()
            ],
        )
        for broker_id in broker_ids
    ]


def test_an_older_cluster_keeps_eligible_replicas_once_the_level_is_raised() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    reason = set_level(active, 1)
    assert reason is not None
    assert "broker 1 does not support this feature" in reason
    active.image = active.image.apply(bootstrap(active.image, min_insync_replicas=2))
    assert not active.image.has_elr
    active.image = active.image.apply(telling_features(1, 2))
    assert set_level(active, 1) is None
    assert active.image.config_of(ConfigResourceType.BROKER, "") == {"min.insync.replicas": "2"}
    silence(active, 2)
    assert stand(active) == (1, (1,), (2,), ())
    silence(active, 1)
    assert set_level(active, 0) is None
    assert stand(active) == (-1, (1, 2), (), ())
    active.beat(2)
    assert stand(active) == (2, (1, 2), (), ())


def test_the_level_needs_records_that_have_room_for_it() -> None:
    active = Active(1, topics={"a": [[1]]})
    old = [FeatureLevelRecord(name=METADATA_VERSION, feature_level=22), *telling_features(1)]
    active.image = active.image.apply(old)
    reason = set_level(active, 1)
    assert reason is not None
    assert "it needs metadata.version at level 23" in reason
