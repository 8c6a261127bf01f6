"""A plain request of every API by which nodes keep a cluster together, and what a lone one says."""

from collections.abc import Callable

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api
from headrace.protocol.messages import (
    alter_partition,
    assign_replicas_to_dirs,
    begin_quorum_epoch,
    describe_quorum,
    end_quorum_epoch,
    fetch_snapshot,
    vote,
)
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.envelope import EnvelopeRequest
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from headrace.protocol.schema import Message

METADATA = "__cluster_metadata"
STRANGER = 77

# A node that is alone in its cluster refuses what strangers want of it.
CLUSTER_ANSWERS: dict[Api, set[int]] = {
    Api.ELECT_LEADERS: {0, ErrorCode.ELECTION_NOT_NEEDED},
    Api.ALTER_REPLICA_LOG_DIRS: {ErrorCode.LOG_DIR_NOT_FOUND},
    Api.ALTER_PARTITION_REASSIGNMENTS: {0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS},
    # Who could depose a leader must at least know which cluster it is in.
    Api.VOTE: {ErrorCode.INCONSISTENT_CLUSTER_ID},
    Api.BEGIN_QUORUM_EPOCH: {ErrorCode.INCONSISTENT_CLUSTER_ID},
    Api.END_QUORUM_EPOCH: {ErrorCode.INCONSISTENT_CLUSTER_ID},
    Api.ALTER_PARTITION: {ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED},
    Api.ENVELOPE: {ErrorCode.INVALID_REQUEST},
    Api.FETCH_SNAPSHOT: {0, ErrorCode.SNAPSHOT_NOT_FOUND},
    Api.BROKER_REGISTRATION: {ErrorCode.INCONSISTENT_CLUSTER_ID},
    Api.BROKER_HEARTBEAT: {ErrorCode.BROKER_ID_NOT_REGISTERED},
    Api.UNREGISTER_BROKER: {ErrorCode.BROKER_ID_NOT_REGISTERED},
    Api.UPDATE_FEATURES: {ErrorCode.INVALID_UPDATE_VERSION},
    Api.ALLOCATE_PRODUCER_IDS: {ErrorCode.BROKER_ID_NOT_REGISTERED},
    Api.ASSIGN_REPLICAS_TO_DIRS: {
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.STALE_BROKER_EPOCH,
    },
    # It waits in vain for the stranger to catch up.
    Api.ADD_RAFT_VOTER: {ErrorCode.REQUEST_TIMED_OUT},
    Api.REMOVE_RAFT_VOTER: {ErrorCode.VOTER_NOT_FOUND},
}


def cluster_requests_of(topic: str, topic_id: bytes) -> dict[Api, Callable[[int], Message]]:
    """Requests of the APIs between nodes, as a stranger would send them."""
    return {
        Api.ELECT_LEADERS: lambda version: ElectLeadersRequest(
            topic_partitions=[TopicPartitions(topic=topic, partitions=[0])]
        ),
        Api.ALTER_REPLICA_LOG_DIRS: lambda version: AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/nowhere", topics=[AlterReplicaLogDirTopic(name=topic, partitions=[0])]
                )
            ]
        ),
        Api.ALTER_PARTITION_REASSIGNMENTS: lambda version: AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[ReassignablePartition()])]
        ),
        Api.LIST_PARTITION_REASSIGNMENTS: lambda version: ListPartitionReassignmentsRequest(),
        Api.VOTE: lambda version: vote.VoteRequest(
            topics=[
                vote.TopicData(
                    topic_name=METADATA, partitions=[vote.PartitionData(replica_id=STRANGER)]
                )
            ]
        ),
        Api.BEGIN_QUORUM_EPOCH: lambda version: begin_quorum_epoch.BeginQuorumEpochRequest(
            topics=[
                begin_quorum_epoch.TopicData(
                    topic_name=METADATA,
                    partitions=[begin_quorum_epoch.PartitionData(leader_id=STRANGER)],
                )
            ]
        ),
        Api.END_QUORUM_EPOCH: lambda version: end_quorum_epoch.EndQuorumEpochRequest(
            topics=[
                end_quorum_epoch.TopicData(
                    topic_name=METADATA,
                    partitions=[end_quorum_epoch.PartitionData(leader_id=STRANGER)],
                )
            ]
        ),
        Api.DESCRIBE_QUORUM: lambda version: describe_quorum.DescribeQuorumRequest(
            topics=[
                describe_quorum.TopicData(
                    topic_name=METADATA, partitions=[describe_quorum.PartitionData()]
                )
            ]
        ),
        Api.ALTER_PARTITION: lambda version: alter_partition.AlterPartitionRequest(
            broker_id=STRANGER,
            topics=[
                alter_partition.TopicData(
                    topic_id=topic_id, partitions=[alter_partition.PartitionData()]
                )
            ],
        ),
        Api.ENVELOPE: lambda version: EnvelopeRequest(request_data=bytes(12)),
        Api.FETCH_SNAPSHOT: lambda version: fetch_snapshot.FetchSnapshotRequest(
            topics=[
                fetch_snapshot.TopicSnapshot(
                    name=METADATA,
                    partitions=[fetch_snapshot.PartitionSnapshot(current_leader_epoch=1)],
                )
            ]
        ),
        Api.BROKER_REGISTRATION: lambda version: BrokerRegistrationRequest(
            broker_id=STRANGER, cluster_id="another", rack=None
        ),
        Api.BROKER_HEARTBEAT: lambda version: BrokerHeartbeatRequest(broker_id=STRANGER),
        Api.UNREGISTER_BROKER: lambda version: UnregisterBrokerRequest(broker_id=STRANGER),
        Api.UPDATE_FEATURES: lambda version: UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature="no.such", max_version_level=1)]
        ),
        Api.ALLOCATE_PRODUCER_IDS: lambda version: AllocateProducerIdsRequest(broker_id=STRANGER),
        Api.ASSIGN_REPLICAS_TO_DIRS: lambda version: (
            assign_replicas_to_dirs.AssignReplicasToDirsRequest(broker_id=STRANGER)
        ),
        Api.ADD_RAFT_VOTER: lambda version: AddRaftVoterRequest(cluster_id=None, voter_id=STRANGER),
        Api.REMOVE_RAFT_VOTER: lambda version: RemoveRaftVoterRequest(
            cluster_id=None, voter_id=STRANGER
        ),
    }
