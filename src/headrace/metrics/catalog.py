"""The families of all metrics that headrace shows, each with its labels and its help text.

`tools/make_metrics_docs.py` makes docs/metrics.md of them. Rule: a name, once released, keeps its
meaning; totals end in `_total`, units are part of the name, and a label has few values or a setting
that bounds them.
"""

from headrace.metrics.registry import SECONDS, Family, Kind

ALL: list[Family] = []
"""All families, in the order of the page."""


def _family(
    kind: Kind,
    name: str,
    text: str,
    labels: tuple[str, ...] = (),
    *,
    bounds: tuple[float, ...] = (),
    kafka: str = "",
) -> Family:
    family = Family(f"headrace_{name}", kind, text, labels, bounds, kafka)
    assert all(other.name != family.name for other in ALL), name
    ALL.append(family)
    return family


def _counter(name: str, text: str, *labels: str, kafka: str = "") -> Family:
    assert name.endswith("_total"), name
    return _family(Kind.COUNTER, name, text, labels, kafka=kafka)


def _gauge(name: str, text: str, *labels: str, kafka: str = "") -> Family:
    return _family(Kind.GAUGE, name, text, labels, kafka=kafka)


def _seconds(name: str, text: str, *labels: str, kafka: str = "") -> Family:
    assert name.endswith("_seconds"), name
    return _family(Kind.HISTOGRAM, name, text, labels, bounds=SECONDS, kafka=kafka)


# The node.

NODE_INFO = _gauge(
    "node_info",
    "1; its labels say what this node is.",
    "version", "node_id", "cluster_id", "roles", "rack",
    kafka="kafka.server:type=app-info",
)  # fmt: skip
NODE_STATE = _gauge(
    "node_state",
    "1 for the state of this node, 0 for the others: recovering, joining, fenced, serving,"
    " stopping.",
    "state",
    kafka="kafka.server:type=KafkaServer,name=BrokerState",
)
UPTIME = _gauge("uptime_seconds", "Seconds since this node began to start.")
PROCESS_CPU = _counter("process_cpu_seconds_total", "User and system CPU time of this process.")
PROCESS_MEMORY = _gauge("process_resident_memory_bytes", "Memory of this process in RAM.")
PROCESS_OPEN_FILES = _gauge("process_open_files", "Files and sockets that this process has open.")
PROCESS_OPEN_FILES_MAX = _gauge(
    "process_open_files_max", "Files and sockets that this process may have open."
)
PROCESS_THREADS = _gauge("process_threads", "Threads of this process.")
LOOP_LAG = _seconds(
    "event_loop_lag_seconds",
    "How late a timer of the event loop fired: the time for which everything else waited.",
)
LOOP_LAG_MAX = _gauge(
    "event_loop_lag_max_seconds", "The longest lag of the event loop in the last minute."
)
WORKERS_QUEUED = _gauge(
    "worker_queue_length", "Calls that wait for a worker thread, by pool of threads.", "pool"
)
LOG_LINES = _counter("log_lines_total", "Lines of the log, by level.", "level")
LOG_LINES_SUPPRESSED = _counter(
    "log_lines_suppressed_total",
    "Lines that were left out of the log because the same message was repeated, by level.",
    "level",
)

# Connections.

CONNECTIONS = _gauge(
    "connections",
    "Connections that are open.",
    "listener",
    kafka="kafka.server:type=socket-server-metrics,name=connection-count",
)
CONNECTIONS_ACCEPTED = _counter(
    "connections_accepted_total",
    "Connections that were accepted and not refused.",
    "listener",
    kafka="kafka.server:type=socket-server-metrics,name=connection-creation-total",
)
CONNECTIONS_REFUSED = _counter(
    "connections_refused_total",
    "Connections that were closed at once or soon, by the limit that was reached.",
    "limit",
)
CONNECTIONS_DELAYED = _counter(
    "connections_delayed_total",
    "Connections that were read only after a wait, to hold a rate of new connections.",
)
CONNECTIONS_CLOSED = _counter(
    "connections_closed_total",
    "Connections that were closed because of what their clients did or did not do.",
    "reason",
)
TLS_FAILURES = _counter("tls_failures_total", "TLS connections that failed.", "listener")
CERTIFICATE_EXPIRY = _gauge(
    "certificate_expiry_timestamp_seconds",
    "When the certificate of a listener expires, in seconds since 1970.",
    "listener",
)
AUTHENTICATIONS = _counter(
    "authentications_total",
    "Logins that succeeded.",
    "listener", "mechanism",
    kafka="kafka.server:type=socket-server-metrics,name=successful-authentication-total",
)  # fmt: skip
AUTHENTICATION_FAILURES = _counter(
    "authentication_failures_total",
    "Logins that were refused.",
    "listener", "mechanism",
    kafka="kafka.server:type=socket-server-metrics,name=failed-authentication-total",
)  # fmt: skip
QUEUED_REQUEST_BYTES = _gauge(
    "queued_request_bytes",
    "Bytes of the buffers for requests that are received and not answered yet.",
    kafka="kafka.network:type=RequestChannel,name=RequestQueueSize",
)
UNREAD_RESPONSE_BYTES = _gauge(
    "unread_response_bytes", "Bytes of answers for connections whose peers do not read."
)
THROTTLED_CONNECTIONS = _gauge(
    "throttled_connections",
    "Connections that are not read because their client is above a quota.",
)
AUDIT_DROPPED = _counter(
    "audit_dropped_total", "Decisions that the audit log left out, for their number."
)

# Requests.

REQUEST_RECEIVED = _counter(
    "request_received_bytes_total",
    "Bytes of requests, without lengths.",
    "api", "listener",
    kafka="kafka.network:type=RequestMetrics,name=RequestBytes",
)  # fmt: skip
REQUEST_SENT = _counter(
    "request_sent_bytes_total", "Bytes of responses.", "api", "listener",
    kafka="kafka.network:type=RequestMetrics,name=ResponseBytes",
)  # fmt: skip
REQUEST_QUEUE = _seconds(
    "request_queue_seconds",
    "Time from the arrival of a request to its dispatch. The count is that of all requests.",
    "api", "listener",
    kafka="kafka.network:type=RequestMetrics,name=RequestQueueTimeMs",
)  # fmt: skip
REQUEST_HANDLER = _seconds(
    "request_handler_seconds",
    "Time on the event loop from the dispatch of a request to its answer or its wait.",
    "api", "listener",
    kafka="kafka.network:type=RequestMetrics,name=LocalTimeMs",
)  # fmt: skip
REQUEST_WAITING = _seconds(
    "request_waiting_seconds",
    "Time that requests waited which could not be answered at once: for other replicas, for"
    " records, for the disk or for the controller.",
    "api", "listener",
    kafka="kafka.network:type=RequestMetrics,name=RemoteTimeMs",
)  # fmt: skip
REQUEST_SENDING = _seconds(
    "request_sending_seconds",
    "Time that a response stayed in this process although it was ready: behind those of earlier"
    " requests, or because its peer did not read. Only responses that waited are counted.",
    "api", "listener",
    kafka="kafka.network:type=RequestMetrics,name=ResponseSendTimeMs",
)  # fmt: skip
REQUEST_TOTAL = _seconds(
    "request_seconds",
    "Time from the arrival of a request to its response: queue, handler and waiting together.",
    "api", "listener",
    kafka="kafka.network:type=RequestMetrics,name=TotalTimeMs",
)  # fmt: skip
REQUEST_ERRORS = _counter(
    "request_errors_total",
    "Requests answered with an error, or not at all.",
    "api", "error", "listener",
    kafka="kafka.network:type=RequestMetrics,name=ErrorsPerSec",
)  # fmt: skip
QUOTA_VIOLATIONS = _counter(
    "quota_violations_total", "Requests of clients that were above a quota.", "quota"
)
QUOTA_THROTTLE = _seconds(
    "quota_throttle_seconds",
    "Time for which requests above a quota had a client wait.",
    "quota",
    kafka="kafka.network:type=RequestMetrics,name=ThrottleTimeMs",
)
QUOTA_CLIENTS = _gauge("quota_clients", "Clients whose use of a quota is measured.")
FETCHES_WAITING = _gauge(
    "fetches_waiting",
    "Fetches that wait for records.",
    kafka="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch",
)
PRODUCES_WAITING = _gauge(
    "produces_waiting",
    "Produce requests that wait until their records are in all replicas, or flushed.",
    kafka="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Produce",
)
FETCH_SESSIONS = _gauge(
    "fetch_sessions",
    "Incremental fetch sessions.",
    kafka="kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions",
)
COLD_READS = _counter(
    "cold_reads_total",
    "Reads of records that were not in the page cache, and went to a worker thread.",
)
COLD_READ_BYTES = _counter("cold_read_bytes_total", "Bytes that cold reads asked for.")

# Topics. A topic beyond `metrics.topics.max` is counted under the name `(other)`.

TOPIC_MESSAGES_IN = _counter(
    "topic_messages_in_total",
    "Records that producers wrote.",
    "topic",
    kafka="kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec",
)
TOPIC_BYTES_IN = _counter(
    "topic_bytes_in_total",
    "Bytes of batches that producers wrote.",
    "topic",
    kafka="kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec",
)
TOPIC_MESSAGES_OUT = _counter(
    "topic_messages_out_total",
    "Offsets of the batches that consumers fetched: their records, and those that compaction took"
    " away.",
    "topic",
)
TOPIC_BYTES_OUT = _counter(
    "topic_bytes_out_total",
    "Bytes of batches that consumers fetched.",
    "topic",
    kafka="kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec",
)
TOPIC_REPLICATION_BYTES_IN = _counter(
    "topic_replication_bytes_in_total",
    "Bytes of batches that this broker fetched from leaders.",
    "topic",
    kafka="kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesInPerSec",
)
TOPIC_REPLICATION_BYTES_OUT = _counter(
    "topic_replication_bytes_out_total",
    "Bytes of batches that followers fetched from this broker.",
    "topic",
    kafka="kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesOutPerSec",
)
TOPIC_PRODUCE_ERRORS = _counter(
    "topic_produce_errors_total",
    "Batches of producers that were refused.",
    "topic",
    kafka="kafka.server:type=BrokerTopicMetrics,name=FailedProduceRequestsPerSec",
)
TOPIC_FETCH_ERRORS = _counter(
    "topic_fetch_errors_total",
    "Partitions of fetches that were answered with an error.",
    "topic",
    kafka="kafka.server:type=BrokerTopicMetrics,name=FailedFetchRequestsPerSec",
)
TOPIC_LOG_BYTES = _gauge(
    "topic_log_bytes", "Bytes of the logs of a topic's replicas on this broker.", "topic"
)

# Partitions: those of the first topics of `metrics.topics.max`, `metrics.partitions.max` at most.

PARTITION_LOG_END = _gauge(
    "partition_log_end_offset",
    "The offset after the last record of a replica on this broker.",
    "topic", "partition",
    kafka="kafka.log:type=Log,name=LogEndOffset",
)  # fmt: skip
PARTITION_LOG_START = _gauge(
    "partition_log_start_offset",
    "The first offset of a replica on this broker.",
    "topic", "partition",
    kafka="kafka.log:type=Log,name=LogStartOffset",
)  # fmt: skip
PARTITION_HIGH_WATERMARK = _gauge(
    "partition_high_watermark",
    "The offset after the last committed record, as a replica on this broker knows it.",
    "topic", "partition",
)  # fmt: skip
PARTITION_LOG_BYTES = _gauge(
    "partition_log_bytes",
    "Bytes of the log of a replica on this broker.",
    "topic", "partition",
    kafka="kafka.log:type=Log,name=Size",
)  # fmt: skip
PARTITION_LEADER = _gauge(
    "partition_leader",
    "1 if this broker leads the partition, 0 if it follows.",
    "topic", "partition",
)  # fmt: skip
PARTITION_FOLLOWER_LAG = _gauge(
    "partition_follower_lag_records",
    "Records of a partition led here that a follower has yet to fetch. Only followers that are"
    " behind have one.",
    "topic", "partition", "follower",
    kafka="kafka.server:type=FetcherLagMetrics,name=ConsumerLag",
)  # fmt: skip

# Replication.

PARTITIONS = _gauge(
    "partitions",
    "Replicas on this broker.",
    kafka="kafka.server:type=ReplicaManager,name=PartitionCount",
)
LEADERS = _gauge(
    "leaders",
    "Partitions that this broker leads.",
    kafka="kafka.server:type=ReplicaManager,name=LeaderCount",
)
UNDER_REPLICATED = _gauge(
    "under_replicated_partitions",
    "Partitions led here with fewer replicas in sync than replicas.",
    kafka="kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions",
)
UNDER_MIN_ISR = _gauge(
    "under_min_isr_partitions",
    "Partitions led here with fewer replicas in sync than `min.insync.replicas`: they take no"
    " records with `acks=all`.",
    kafka="kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount",
)
AT_MIN_ISR = _gauge(
    "at_min_isr_partitions",
    "Partitions led here with exactly `min.insync.replicas` replicas in sync, of more.",
    kafka="kafka.server:type=ReplicaManager,name=AtMinIsrPartitionCount",
)
REASSIGNING = _gauge(
    "reassigning_partitions",
    "Partitions led here whose replicas move to other brokers.",
    kafka="kafka.server:type=ReplicaManager,name=ReassigningPartitions",
)
OFFLINE_REPLICAS = _gauge(
    "offline_replicas",
    "Replicas on this broker whose log cannot be used.",
    kafka="kafka.server:type=ReplicaManager,name=OfflineReplicaCount",
)
ISR_SHRINKS = _counter(
    "isr_shrinks_total",
    "Replicas in sync that partitions led here lost.",
    kafka="kafka.server:type=ReplicaManager,name=IsrShrinksPerSec",
)
ISR_EXPANDS = _counter(
    "isr_expands_total",
    "Replicas in sync that partitions led here gained.",
    kafka="kafka.server:type=ReplicaManager,name=IsrExpandsPerSec",
)
FOLLOWER_LAG_MAX = _gauge(
    "follower_lag_max_records",
    "The most records that a follower of a partition led here has yet to fetch.",
    kafka="kafka.server:type=ReplicaFetcherManager,name=MaxLag",
)
FOLLOWER_LAG_MAX_SECONDS = _gauge(
    "follower_lag_max_seconds",
    "The longest time for which a follower of a partition led here has not been caught up.",
)
FOLLOWERS_BEHIND = _gauge(
    "followers_behind", "Followers of partitions led here that have records to fetch."
)

# The cluster, as its active controller sees it.

ACTIVE_CONTROLLER = _gauge(
    "active_controller",
    "1 if this node is the active controller. The sum over a cluster is 1.",
    kafka="kafka.controller:type=KafkaController,name=ActiveControllerCount",
)
CLUSTER_BROKERS = _gauge(
    "cluster_brokers",
    "Brokers by state, active or fenced, at the active controller.",
    "state",
    kafka="kafka.controller:type=KafkaController,name=ActiveBrokerCount, FencedBrokerCount",
)
CLUSTER_TOPICS = _gauge(
    "cluster_topics",
    "Topics, at the active controller.",
    kafka="kafka.controller:type=KafkaController,name=GlobalTopicCount",
)
CLUSTER_PARTITIONS = _gauge(
    "cluster_partitions",
    "Partitions, at the active controller.",
    kafka="kafka.controller:type=KafkaController,name=GlobalPartitionCount",
)
OFFLINE_PARTITIONS = _gauge(
    "offline_partitions",
    "Partitions without a leader, at the active controller.",
    kafka="kafka.controller:type=KafkaController,name=OfflinePartitionsCount",
)
PREFERRED_IMBALANCE = _gauge(
    "preferred_leader_imbalance",
    "Partitions whose leader is not their first replica, at the active controller.",
    kafka="kafka.controller:type=KafkaController,name=PreferredReplicaImbalanceCount",
)
LEADER_ELECTIONS = _counter(
    "leader_elections_total",
    "Changes of partition leaders in the metadata since this node began to start.",
    kafka="kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs",
)
UNCLEAN_ELECTIONS = _counter(
    "unclean_leader_elections_total",
    "Leaders that may lack committed records, since this node began to start.",
    kafka="kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
)
RAFT_EPOCH = _gauge(
    "raft_epoch",
    "The epoch of the quorum of controllers.",
    kafka="kafka.server:type=raft-metrics,name=current-epoch",
)
RAFT_LEADER = _gauge(
    "raft_leader_id",
    "The node that leads the quorum; -1 if none is known.",
    kafka="kafka.server:type=raft-metrics,name=current-leader",
)
RAFT_LOG_END = _gauge(
    "raft_log_end_offset",
    "The offset after the last record of the metadata log here.",
    kafka="kafka.server:type=raft-metrics,name=log-end-offset",
)
RAFT_HIGH_WATERMARK = _gauge(
    "raft_high_watermark",
    "The offset after the last committed record of the metadata log, as far as known here.",
    kafka="kafka.server:type=raft-metrics,name=high-watermark",
)
RAFT_COMMIT_LAG = _gauge(
    "raft_commit_lag_records", "Records of the metadata log here that are not committed yet."
)
RAFT_ELECTIONS = _counter(
    "raft_elections_total", "Changes of the quorum's epoch since this node began to start."
)
METADATA_APPLY_LAG = _gauge(
    "metadata_apply_lag_records",
    "Committed records of the metadata log that this node has not applied yet.",
    kafka="kafka.server:type=broker-metadata-metrics,name=last-applied-record-lag-ms",
)

# Disks.

DIRECTORY_FREE = _gauge(
    "log_directory_free_bytes", "Free bytes of the disk of a data directory.", "directory"
)
DIRECTORY_TOTAL = _gauge(
    "log_directory_total_bytes", "Size of the disk of a data directory.", "directory"
)
DIRECTORY_LOG_BYTES = _gauge(
    "log_directory_log_bytes", "Bytes of the logs in a data directory.", "directory"
)
DIRECTORY_OFFLINE = _gauge(
    "log_directory_offline",
    "1 if a data directory cannot be used.",
    "directory",
    kafka="kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
)
DIRECTORY_FULL = _gauge(
    "log_directory_full",
    "1 if a data directory takes no records because its disk is full.",
    "directory",
)
LOG_FLUSH = _seconds(
    "log_flush_seconds",
    "Time of a flush of a log to its disk.",
    kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
)
COMPACTIONS = _counter("compactions_total", "Rounds of compaction that were finished.")
COMPACTION_FAILURES = _counter("compaction_failures_total", "Rounds of compaction that failed.")
COMPACTION_READ = _counter("compaction_read_bytes_total", "Bytes that compaction read.")
COMPACTION_KEPT = _counter("compaction_kept_bytes_total", "Bytes that compaction kept.")
COMPACTING = _gauge("compacting", "1 while a log is compacted.")
COMPACTION_DONE = _gauge(
    "compaction_done_ratio",
    "How much of the present round of compaction is done, by bytes to read; 1 if there is none.",
)
SCRUBBED = _counter(
    "scrubbed_bytes_total", "Bytes of segments that were read again to find damage.", "directory"
)
SCRUB_PASS_DONE = _gauge(
    "scrub_pass_done_ratio", "How much of a data directory the present pass has read.", "directory"
)
SCRUB_DAMAGED = _gauge(
    "scrub_damaged_segments", "Segments in which the scrubber found damage.", "directory"
)

# Groups, at their coordinators: those of the first `metrics.groups.max` groups.

GROUPS = _gauge(
    "groups",
    "Groups that this broker coordinates, by state.",
    "state",
    kafka="kafka.server:type=group-coordinator-metrics,name=group-count",
)
GROUP_MEMBERS = _gauge("group_members", "Members of a group.", "group")
GROUP_REBALANCES = _counter(
    "group_rebalances_total",
    "Generations that a group began while it was coordinated here.",
    "group",
    kafka="kafka.server:type=group-coordinator-metrics,name=group-completed-rebalance-count",
)
GROUP_COMMITS = _counter(
    "group_commits_total",
    "Offsets of partitions that a group committed while it was coordinated here.",
    "group",
    kafka="kafka.server:type=group-coordinator-metrics,name=offset-commit-count",
)
GROUP_COMMITTED = _gauge(
    "group_committed_offset",
    "The committed offset of a group.",
    "group", "topic", "partition",
)  # fmt: skip
GROUP_LAG = _gauge(
    "group_lag_records",
    "Offsets between the committed offset of a group and the last stable offset of the partition.",
    "group", "topic", "partition",
    kafka="kafka.consumer:type=consumer-fetch-manager-metrics,name=records-lag",
)  # fmt: skip
GROUP_LAG_SECONDS = _gauge(
    "group_lag_seconds",
    "The age of the first record that a group has yet to process, by the timestamp in the log; 0"
    " if there is none.",
    "group", "topic", "partition",
)  # fmt: skip
GROUP_LAG_AGE = _gauge(
    "group_lag_age_seconds",
    "Seconds since the lags of groups were last looked up, the longest of all partitions.",
)
TRANSACTIONS = _gauge(
    "transactions", "Transactional ids that this broker coordinates, by state.", "state"
)

# Clients' telemetry (KIP-714).

TELEMETRY_CLIENTS = _gauge(
    "telemetry_clients", "Clients whose pushed metrics are shown.",
    kafka="kafka.server:type=client-metrics,name=ClientMetricsInstanceCount",
)  # fmt: skip
CLIENT_GAUGE = _gauge(
    "client_gauge",
    "A gauge that a client pushed; `metric` is its name there, `attributes` has NAME=VALUE pairs.",
    "client_id", "client_instance_id", "software", "metric", "attributes",
)  # fmt: skip
CLIENT_SUM = _counter(
    "client_sum_total",
    "A sum that a client pushed, since it is shown here.",
    "client_id", "client_instance_id", "software", "metric", "attributes",
)  # fmt: skip
TELEMETRY_PUSHES = _counter("telemetry_pushes_total", "Pushes of metrics by clients.")
TELEMETRY_REFUSED = _counter(
    "telemetry_refused_total", "Pushes that were refused because they could not be read."
)
TELEMETRY_DROPPED = _counter(
    "telemetry_dropped_points_total",
    "Points of pushed metrics that are not shown because there are too many.",
)

# The admin listener itself.

SCRAPES = _counter("scrapes_total", "Answered requests for `/metrics`.")
SCRAPE_TURN = _seconds(
    "scrape_turn_seconds",
    "Time of one turn of the event loop that was spent on a scrape, which is cut into turns.",
)
ADMIN_CONNECTIONS = _gauge("admin_connections", "Connections to the admin listener.")
