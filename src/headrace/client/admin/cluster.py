"""Describes and changes the cluster: brokers, data directories, and the quorum of controllers."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.admin.admin_requests import (
    ControllerRequests,
    is_refused_for_now,
    result,
    retry_until_answered,
    timeout_ms,
)
from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import BrokerInfo
from headrace.client.errors import check, failure
from headrace.errors import ErrorCode, KafkaError, Subject
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponsePartitionData,
    PartitionData,
    ReplicaState,
    TopicData,
)
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.schema import Message
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster at one moment, with its brokers. `controller_id` is -1 if none is known."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerInfo, ...]


async def describe_cluster(cluster: ClusterClient, *, include_fenced: bool) -> ClusterDescription:
    """The current description of the cluster."""
    deadline = cluster.deadline()
    if include_fenced:
        return await cluster.retrying(lambda: _with_fenced(cluster, deadline), deadline)
    view = await cluster.retrying(lambda: cluster.refresh((), deadline), deadline)
    brokers = tuple(view.brokers[node_id] for node_id in sorted(view.brokers))
    return ClusterDescription(view.cluster_id, view.controller_id, brokers)


async def _with_fenced(cluster: ClusterClient, deadline: float) -> ClusterDescription:
    response = await cluster.call(DescribeClusterRequest(include_fenced_brokers=True), deadline)
    check(response.error_code, response.error_message)
    brokers = [
        BrokerInfo(
            broker.broker_id, Address(broker.host, broker.port), broker.rack, broker.is_fenced
        )
        for broker in response.brokers
    ]
    brokers.sort(key=lambda broker: broker.node_id)
    return ClusterDescription(response.cluster_id, response.controller_id, tuple(brokers))


async def unregister_broker(cluster: ClusterClient, broker_id: int) -> None:
    """Remove the registration of a broker."""
    target = ControllerRequests(cluster)

    async def attempt(missing: list[int], deadline: float) -> dict[int, KafkaError | None]:
        response = await target.send_once(UnregisterBrokerRequest(broker_id=broker_id), deadline)
        error = failure(
            response.error_code, response.error_message, Subject("broker", str(broker_id))
        )
        return {broker_id: error}

    result(await retry_until_answered(cluster, [broker_id], attempt, is_refused_for_now), broker_id)


@dataclass(frozen=True, slots=True)
class FutureReplica:
    """The future copy of a replica that moves to another directory of its broker.

    `offset_lag` is the number of offsets still to be copied, or -1 if unknown.
    """

    size: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A data directory of a broker, with the size of each replica in it.

    `future_replicas` are the copies of replicas that are moving into it from another directory.

    An offline directory has an error and no replicas. Disk sizes are None if the broker does not
    report them.
    """

    path: str
    error: KafkaError | None
    replicas: Mapping[TopicPartition, int]
    total_bytes: int | None
    usable_bytes: int | None
    future_replicas: Mapping[TopicPartition, FutureReplica] = field(default_factory=dict)
    # Whether it accepts no new replicas: headrace's brokers cordon a directory that is full.
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True)
class SetAsideLog:
    """A log that a broker renamed to set it aside for an operator, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class DirectoryHealth:
    """The scrubbing pass of a broker over a data directory, and the logs set aside in it.

    Times are None before the first pass began, or while it is not at its end. `closed_bytes` are
    the bytes of the segments a pass reads, `damaged_segments` the segments that were found damaged
    and still exist.
    """

    scrub_started_ms: int | None
    scrub_finished_ms: int | None
    scrubbed_segments: int
    scrubbed_bytes: int
    closed_bytes: int
    damaged_segments: int
    set_aside: tuple[SetAsideLog, ...]


@dataclass(frozen=True, slots=True)
class ReplicaProblem:
    """A replica that serves no requests, or not all of them.

    `state` is "stopped" if its leader lacks committed records that this replica has, "damaged",
    "lost", or "offline" if its disk fails or is full; `reason` says why, and what to do.
    """

    partition: TopicPartition
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """The data directories of a broker and the problems of its replicas.

    `health` has the working directories by path. Only headrace's brokers report `health` and
    `problems`.
    """

    directories: tuple[LogDirectory, ...]
    health: Mapping[str, DirectoryHealth]
    problems: tuple[ReplicaProblem, ...]


async def describe_log_dirs(
    cluster: ClusterClient, broker_ids: Sequence[int]
) -> dict[int, tuple[LogDirectory, ...] | KafkaError]:
    """The data directories of brokers, in one attempt; each broker has its own outcome."""
    answers = await _describe_all_directories(
        cluster, broker_ids, DescribeLogDirsRequest(topics=None)
    )
    return {
        broker_id: answer
        if isinstance(answer, KafkaError)
        else tuple(_directory(broker_id, directory) for directory in answer.results)
        for broker_id, answer in answers.items()
    }


async def describe_health(
    cluster: ClusterClient, broker_ids: Sequence[int]
) -> dict[int, BrokerHealth | KafkaError]:
    """The health of brokers, in one attempt; each broker has its own outcome."""
    request = DescribeLogDirsRequest(topics=None, include_health=True)
    answers = await _describe_all_directories(cluster, broker_ids, request)
    return {
        broker_id: answer if isinstance(answer, KafkaError) else _health(broker_id, answer)
        for broker_id, answer in answers.items()
    }


async def _describe_all_directories(
    cluster: ClusterClient, broker_ids: Sequence[int], request: DescribeLogDirsRequest
) -> dict[int, DescribeLogDirsResponse | KafkaError]:
    deadline = cluster.deadline()
    await cluster.heard_view(deadline)
    asked = [
        _describe_directories(cluster, broker_id, request, deadline) for broker_id in broker_ids
    ]
    return dict(zip(broker_ids, await asyncio.gather(*asked), strict=True))


async def _describe_directories(
    cluster: ClusterClient, broker_id: int, request: DescribeLogDirsRequest, deadline: float
) -> DescribeLogDirsResponse | KafkaError:
    try:
        response: DescribeLogDirsResponse = await cluster.call(request, deadline, broker_id)
    except KafkaError as error:
        return error
    except ConnectionFailed as error:
        return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id}: {error}")
    return failure(response.error_code, subject=Subject("broker", str(broker_id))) or response


def _health(broker_id: int, answer: DescribeLogDirsResponse) -> BrokerHealth:
    return BrokerHealth(
        tuple(_directory(broker_id, directory) for directory in answer.results),
        {
            directory.log_dir: DirectoryHealth(
                told.scrub_started_ms if told.scrub_started_ms >= 0 else None,
                told.scrub_finished_ms if told.scrub_finished_ms >= 0 else None,
                told.scrubbed_segments,
                told.scrubbed_bytes,
                told.closed_bytes,
                told.damaged_segments,
                tuple(SetAsideLog(aside.name, aside.reason) for aside in told.set_aside),
            )
            for directory in answer.results
            if (told := directory.health) is not None
        },
        tuple(
            ReplicaProblem(
                TopicPartition(replica_problem.topic, replica_problem.partition_index),
                replica_problem.state,
                replica_problem.reason,
            )
            for replica_problem in answer.replica_problems
        ),
    )


def _directory(broker_id: int, result: DescribeLogDirsResult) -> LogDirectory:
    return LogDirectory(
        result.log_dir,
        failure(
            result.error_code,
            subject=Subject("directory", f"{result.log_dir} of broker {broker_id}"),
        ),
        {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for topic in result.topics
            for partition in topic.partitions
            if not partition.is_future_key
        },
        result.total_bytes if result.total_bytes >= 0 else None,
        result.usable_bytes if result.usable_bytes >= 0 else None,
        {
            TopicPartition(topic.name, partition.partition_index): FutureReplica(
                partition.partition_size, partition.offset_lag
            )
            for topic in result.topics
            for partition in topic.partitions
            if partition.is_future_key
        },
        result.is_cordoned,
    )


async def alter_replica_log_dirs(
    cluster: ClusterClient, broker_id: int, targets: Mapping[TopicPartition, str]
) -> dict[TopicPartition, KafkaError | None]:
    """Ask a broker to move replicas between its directories; each replica has its own outcome."""
    deadline = cluster.deadline()
    await cluster.heard_view(deadline)
    request = AlterReplicaLogDirsRequest(dirs=[])
    for path in dict.fromkeys(targets.values()):
        topics: dict[str, AlterReplicaLogDirTopic] = {}
        for tp in (tp for tp, wanted in targets.items() if wanted == path):
            topic = topics.setdefault(tp.topic, AlterReplicaLogDirTopic(name=tp.topic))
            topic.partitions.append(tp.partition)
        request.dirs.append(AlterReplicaLogDir(path=path, topics=list(topics.values())))
    try:
        response = await cluster.call(request, deadline, broker_id)
    except ConnectionFailed as error:
        gone = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id}: {error}")
        return dict.fromkeys(targets, gone)
    codes = {
        TopicPartition(topic.topic_name, partition.partition_index): partition.error_code
        for topic in response.results
        for partition in topic.partitions
    }
    missing = ErrorCode.UNKNOWN_SERVER_ERROR
    return {
        tp: failure(
            codes.get(tp, missing), subject=Subject("replica", f"{tp} of broker {broker_id}")
        )
        for tp in targets
    }


_METADATA_TOPIC = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A replica of the metadata log.

    Times are in milliseconds since 1970; None if unknown, as of the leader itself.
    """

    node_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum at one moment.

    Voters decide what is committed, observers only replicate. `endpoints` has the known addresses
    of voters by node id and listener name.
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, Mapping[str, Address]] = field(default_factory=dict)


class QuorumAdmin:
    """Commands about the quorum of controllers."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def describe(self) -> QuorumDescription:
        """The quorum as its leader describes it."""
        target = ControllerRequests(self._cluster)
        deadline = self._cluster.deadline()
        request = DescribeQuorumRequest(
            topics=[
                TopicData(topic_name=_METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])
            ]
        )

        async def attempt() -> QuorumDescription:
            response = await target.send(request, deadline)
            check(response.error_code, response.error_message)
            found = [partition for topic in response.topics for partition in topic.partitions]
            if not found:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, "the broker says nothing of the quorum"
                )
            check(found[0].error_code, found[0].error_message, Subject("quorum"))
            endpoints = {
                node.node_id: {
                    listener.name: Address(listener.host, listener.port)
                    for listener in node.listeners
                }
                for node in response.nodes
            }
            return _description(found[0], endpoints)

        return await self._cluster.retrying(attempt, deadline)

    async def add_voter(
        self, node_id: int, directory_id: bytes, endpoints: Mapping[str, Address]
    ) -> None:
        """Make an observer of the metadata log a voter."""
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=timeout_ms(self._cluster),
            voter_id=node_id,
            voter_directory_id=directory_id,
            listeners=[
                Listener(name=name, host=address.host, port=address.port)
                for name, address in endpoints.items()
            ],
        )
        await self._change(request, Subject("voter", str(node_id)))

    async def remove_voter(self, node_id: int, directory_id: bytes) -> None:
        """Remove a voter."""
        request = RemoveRaftVoterRequest(
            cluster_id=None, voter_id=node_id, voter_directory_id=directory_id
        )
        await self._change(request, Subject("voter", str(node_id)))

    async def _change(self, request: Message, subject: Subject) -> None:
        target = ControllerRequests(self._cluster)
        deadline = self._cluster.deadline()
        refused: list[KafkaError] = []

        async def attempt() -> None:
            refused.clear()
            response = await target.send_once(request, deadline)
            try:
                check(response.error_code, response.error_message, subject)
            except KafkaError as error:
                # Only errors that say that nothing was done are retried.
                if is_refused_for_now(error):
                    raise
                refused.append(error)

        await self._cluster.retrying(attempt, deadline)
        if refused:
            raise refused[0]


def _description(
    found: DescribeQuorumResponsePartitionData, endpoints: Mapping[int, Mapping[str, Address]]
) -> QuorumDescription:
    return QuorumDescription(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        tuple(_replica(voter) for voter in sorted(found.current_voters, key=_id)),
        tuple(_replica(observer) for observer in sorted(found.observers, key=_id)),
        endpoints,
    )


def _id(state: ReplicaState) -> int:
    return state.replica_id


def _replica(state: ReplicaState) -> QuorumReplica:
    def known(time_ms: int) -> int | None:
        return time_ms if time_ms >= 0 else None

    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        state.log_end_offset,
        known(state.last_fetch_timestamp),
        known(state.last_caught_up_timestamp),
    )
