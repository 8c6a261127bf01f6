"""Settings of a cluster's nodes: controllers, heartbeats, replication; broker settings too."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from headrace.config.topic import MIB
from headrace.options import LONG_MAX, Bool, Int, ListOf, Long, Text, one_of, setting

_VOTER = re.compile(
    r"(?P<id>[0-9]{1,10})@(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s@]+)):(?P<port>[0-9]{1,5})\Z"
)


class QuorumVoter(NamedTuple):
    """A node that votes for the controller, and where it is reached."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.node_id}@{host}:{self.port}"


def parse_voters(texts: tuple[str, ...]) -> tuple[QuorumVoter, ...]:
    """The voters of `controller.quorum.voters`; ValueError names the wrong one."""
    voters: list[QuorumVoter] = []
    for text in texts:
        match = _VOTER.match(text)
        if match is None or not 1 <= int(match["port"]) <= 65_535:
            raise ValueError(f"{text!r} is not of the form id@host:port")
        voter = QuorumVoter(int(match["id"]), match["v6"] or match["host"], int(match["port"]))
        if any(voter.node_id == other.node_id for other in voters):
            raise ValueError(f"node {voter.node_id} is named twice")
        voters.append(voter)
    return tuple(voters)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class QuorumConfig:
    """Settings of the controller quorum and of heartbeats."""

    broker_heartbeat_interval_ms: int = setting(
        Int(1),
        400,
        doc="How often a broker tells the controller that it lives. Kafka's default is 2000.",
    )
    broker_session_timeout_ms: int = setting(
        Int(1),
        2000,
        doc="A broker that is silent for so long is fenced: others lead its partitions, and the"
        " broker itself accepts no more records. Kafka's default is 9000.",
    )
    cluster_id: str | None = setting(
        Text(),
        None,
        doc="The id of the cluster that new data directories are to belong to. Without it a node"
        " alone makes one up, and nodes with the same `controller.quorum.voters` come to the same"
        " one. A setting of headrace's own.",
    )
    controlled_shutdown_enable: bool = setting(
        Bool(),
        True,
        doc="Whether a broker that is asked to stop first hands its leaderships to others.",
    )
    controller_listener_names: tuple[str, ...] = setting(
        ListOf(may_be_empty=True),
        (),
        doc="The listeners for controllers, which then answer nothing of clients, and brokers'"
        " other listeners nothing of controllers. Without it every listener serves both.",
    )
    controller_quorum_bootstrap_servers: tuple[str, ...] = setting(
        ListOf(may_be_empty=True),
        (),
        doc="Controllers, as `host:port`, that a node which is no voter asks who leads. A"
        " controller that is told only its own address is the only voter.",
    )
    controller_quorum_election_backoff_max_ms: int = setting(
        Int(1),
        500,
        doc="The longest pause before a lost election is tried again. Kafka's default is 1000.",
    )
    controller_quorum_election_timeout_ms: int = setting(
        Int(1),
        500,
        doc="How long a candidate waits for votes, and a controller that knows no leader before it"
        " stands itself; up to twice as long, at random. Kafka's default is 1000.",
    )
    controller_quorum_fetch_timeout_ms: int = setting(
        Int(1),
        1000,
        doc="A controller that hears nothing of its leader for so long stands for election; a"
        " leader that hears nothing of a majority for so long resigns. Time in which the process"
        " itself did not run does not count. Kafka's default is 2000.",
    )
    controller_quorum_request_timeout_ms: int = setting(
        Int(1),
        1000,
        doc="How long one request between controllers may take. Kafka's default is 2000.",
    )
    controller_quorum_voters: tuple[QuorumVoter, ...] = setting(
        ListOf(may_be_empty=True),
        (),
        convert=parse_voters,
        doc="The controllers that elect the active one, as `id@host:port`. Without it a node with"
        " the role `controller` is the only one. Once the cluster has changed its voters, those in"
        " the metadata log hold.",
    )
    inter_broker_listener_name: str | None = setting(
        Text(),
        None,
        doc="The listener at which brokers reach each other; without it the first one that speaks"
        " `security.inter.broker.protocol`, or else the first one.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        Long(1),
        30,
        doc="How often the controller looks for leaderships that are not with the first replica."
        " Kafka's default is 300.",
    )
    auto_leader_rebalance_enable: bool = setting(
        Bool(),
        True,
        doc="Whether the controller gives leaderships back to the first replica of a partition.",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        Int(0, 100),
        10,
        doc="The share of a broker's partitions that others may lead before it gets them back.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        Long(1),
        20 * 1_048_576,
        doc="Bytes of metadata records after which a snapshot takes the place of the older ones.",
    )


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class ReplicationConfig:
    """Settings of replication: follower fetches, in-sync replicas, throttles."""

    follower_replication_throttled_rate: int = setting(
        Long(1),
        LONG_MAX,
        dynamic=True,
        doc="Bytes a second that this broker takes as a follower of throttled replicas"
        " (`follower.replication.throttled.replicas` of a topic).",
    )
    leader_replication_throttled_rate: int = setting(
        Long(1),
        LONG_MAX,
        dynamic=True,
        doc="Bytes a second that this broker gives as a leader to throttled replicas"
        " (`leader.replication.throttled.replicas` of a topic).",
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        Long(1),
        LONG_MAX,
        dynamic=True,
        doc="Bytes a second that this broker copies for replicas which move from one of its"
        " `log.dirs` to another.",
    )
    replica_fetch_backoff_ms: int = setting(
        Int(1),
        100,
        doc="How long a follower waits before it asks a leader again that failed. Kafka's default"
        " is 1000.",
    )
    replica_fetch_max_bytes: int = setting(
        Int(1),
        MIB,
        doc="Bytes a follower asks for from each partition at once; one batch always fits.",
    )
    replica_fetch_min_bytes: int = setting(
        Int(1),
        1,
        doc="Bytes a leader collects before it answers a follower, within"
        " `replica.fetch.wait.max.ms`.",
    )
    replica_fetch_response_max_bytes: int = setting(
        Int(1),
        10 * MIB,
        doc="Bytes a follower asks for from all partitions of a leader at once.",
    )
    replica_fetch_wait_max_ms: int = setting(
        Int(0),
        500,
        doc="How long a leader may keep a follower's fetch that finds nothing new.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        Long(1),
        5000,
        doc="How often high watermarks are written to disk.",
    )
    replica_lag_time_max_ms: int = setting(
        Long(1),
        10_000,
        doc="A follower that has not caught up with its leader for so long leaves the in-sync"
        " replicas. Kafka's default is 30000.",
    )
    replica_selector_class: str | None = setting(
        one_of(RACK_AWARE),
        None,
        doc="Which replica consumers read: without it the leader, with"
        f" `{RACK_AWARE}` one in their `client.rack`.",
    )
    replica_socket_timeout_ms: int = setting(
        Int(1),
        5000,
        doc="How long a request from broker to broker may take, beyond what it may wait. Kafka's"
        " default is 30000.",
    )
    unclean_recovery_timeout_ms: int = setting(
        Long(0),
        300_000,
        doc="When no replica of a partition is sure to have every acknowledged record, because all"
        " that did restarted uncleanly or lost their logs: how long the controller waits for the"
        " missing ones, after the first is back, before the longest of the logs that are there"
        " leads. Of KIP-966; not in Kafka 4.3.",
    )
