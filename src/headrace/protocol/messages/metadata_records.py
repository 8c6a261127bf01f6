"""The records of the metadata log, as Kafka defines them."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    raw,
    string,
    uint16,
    uuid,
)
from headrace.types import ZERO_UUID


class BrokerEndpoint(Struct):
    name: str = string(default="")
    host: str = string(default="")
    port: int = uint16(default=0)
    security_protocol: int = int16(default=0)


class BrokerFeature(Struct):
    name: str = string(default="")
    min_supported_version: int = int16(default=0)
    max_supported_version: int = int16(default=0)


class RegisterBrokerRecord(Message, api_key=0, versions=(0, 4), flexible_from=0):
    broker_id: int = int32(default=0)
    is_migrating_zk_broker: bool = boolean("2+", default=False)
    incarnation_id: bytes = uuid(default=ZERO_UUID)
    broker_epoch: int = int64(default=0)
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint, default=...)
    features: list[BrokerFeature] = array(BrokerFeature, default=...)
    rack: str | None = string(nullable="0+", default="")
    fenced: bool = boolean(default=True)
    in_controlled_shutdown: bool = boolean("1+", default=False)
    log_dirs: list[bytes] = array(uuid, "3+", tag=0, default=...)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "4+", nullable="4+", tag=1, default=None)


class UnregisterBrokerRecord(Message, api_key=1, versions=(0, 0), flexible_from=0):
    broker_id: int = int32(default=0)
    broker_epoch: int = int64(default=0)


class TopicRecord(Message, api_key=2, versions=(0, 0), flexible_from=0):
    name: str = string(default="")
    topic_id: bytes = uuid(default=ZERO_UUID)


class PartitionRecord(Message, api_key=3, versions=(0, 2), flexible_from=0):
    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid(default=ZERO_UUID)
    replicas: list[int] = array(int32, default=...)
    isr: list[int] = array(int32, default=...)
    removing_replicas: list[int] = array(int32, default=...)
    adding_replicas: list[int] = array(int32, default=...)
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0, default=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[bytes] = array(uuid, "1+", default=...)
    eligible_leader_replicas: list[int] | None = array(
        int32, "2+", nullable="2+", tag=1, default=None
    )
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", tag=2, default=None)


class ConfigRecord(Message, api_key=4, versions=(0, 0), flexible_from=0):
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    name: str = string(default="")
    value: str | None = string(nullable="0+", default="")


class PartitionChangeRecord(Message, api_key=5, versions=(0, 2), flexible_from=0):
    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid(default=ZERO_UUID)
    isr: list[int] | None = array(int32, nullable="0+", tag=0, default=None)
    leader: int = int32(tag=1, default=-2)
    replicas: list[int] | None = array(int32, nullable="0+", tag=2, default=None)
    removing_replicas: list[int] | None = array(int32, nullable="0+", tag=3, default=None)
    adding_replicas: list[int] | None = array(int32, nullable="0+", tag=4, default=None)
    leader_recovery_state: int = int8(tag=5, default=-1)
    directories: list[bytes] | None = array(uuid, "1+", nullable="1+", tag=8, default=None)
    eligible_leader_replicas: list[int] | None = array(
        int32, "2+", nullable="2+", tag=6, default=None
    )
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", tag=7, default=None)


class FenceBrokerRecord(Message, api_key=7, versions=(0, 0), flexible_from=0):
    id: int = int32(default=0)
    epoch: int = int64(default=0)


class UnfenceBrokerRecord(Message, api_key=8, versions=(0, 0), flexible_from=0):
    id: int = int32(default=0)
    epoch: int = int64(default=0)


class RemoveTopicRecord(Message, api_key=9, versions=(0, 0), flexible_from=0):
    topic_id: bytes = uuid(default=ZERO_UUID)


class DelegationTokenRecord(Message, api_key=10, versions=(0, 0), flexible_from=0):
    owner: str = string(default="")
    requester: str = string(default="")
    renewers: list[str] = array(string, default=...)
    issue_timestamp: int = int64(default=0)
    max_timestamp: int = int64(default=0)
    expiration_timestamp: int = int64(default=0)
    token_id: str = string(default="")


class UserScramCredentialRecord(Message, api_key=11, versions=(0, 0), flexible_from=0):
    name: str = string(default="")
    mechanism: int = int8(default=0)
    salt: bytes = raw(default=b"")
    stored_key: bytes = raw(default=b"")
    server_key: bytes = raw(default=b"")
    iterations: int = int32(default=0)


class FeatureLevelRecord(Message, api_key=12, versions=(0, 0), flexible_from=0):
    name: str = string(default="")
    feature_level: int = int16(default=0)


class EntityData(Struct):
    entity_type: str = string(default="")
    entity_name: str | None = string(nullable="0+", default="")


class ClientQuotaRecord(Message, api_key=14, versions=(0, 0), flexible_from=0):
    entity: list[EntityData] = array(EntityData, default=...)
    key: str = string(default="")
    value: float = float64(default=0.0)
    remove: bool = boolean(default=False)


class ProducerIdsRecord(Message, api_key=15, versions=(0, 0), flexible_from=0):
    broker_id: int = int32(default=0)
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64(default=0)


class BrokerRegistrationChangeRecord(Message, api_key=17, versions=(0, 3), flexible_from=0):
    broker_id: int = int32(default=0)
    broker_epoch: int = int64(default=0)
    fenced: int = int8(tag=0, default=0)
    in_controlled_shutdown: int = int8("1+", tag=1, default=0)
    log_dirs: list[bytes] = array(uuid, "2+", tag=2, default=...)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "3+", nullable="3+", tag=3, default=None)


class AccessControlEntryRecord(Message, api_key=18, versions=(0, 0), flexible_from=0):
    id: bytes = uuid(default=ZERO_UUID)
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    pattern_type: int = int8(default=0)
    principal: str = string(default="")
    host: str = string(default="")
    operation: int = int8(default=0)
    permission_type: int = int8(default=0)


class RemoveAccessControlEntryRecord(Message, api_key=19, versions=(0, 0), flexible_from=0):
    id: bytes = uuid(default=ZERO_UUID)


class NoOpRecord(Message, api_key=20, versions=(0, 0), flexible_from=0):
    pass


class RemoveUserScramCredentialRecord(Message, api_key=22, versions=(0, 0), flexible_from=0):
    name: str = string(default="")
    mechanism: int = int8(default=0)


class RemoveDelegationTokenRecord(Message, api_key=26, versions=(0, 0), flexible_from=0):
    token_id: str = string(default="")
