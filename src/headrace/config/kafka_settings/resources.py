"""Settings of Kafka 4.3 of topics, groups and client metrics; `config.accepted` reads the rows."""

TOPIC_ROWS = """\
cleanup.policy LIST delete
compression.gzip.level INT -1
compression.lz4.level INT 9
compression.type STRING producer
compression.zstd.level INT 3
delete.retention.ms LONG 86400000
file.delete.delay.ms LONG 60000
flush.messages LONG 9223372036854775807
flush.ms LONG 9223372036854775807
follower.replication.throttled.replicas LIST empty
index.interval.bytes INT 4096
internal.segment.bytes INT null internal
    Segment size below the least of `segment.bytes`; for tests.
leader.replication.throttled.replicas LIST empty
local.retention.bytes LONG -2 -2: synonym=log.local.retention.bytes
    Bytes kept on the broker of what is in remote storage; -2 is `retention.bytes`.
local.retention.ms LONG -2 -2: synonym=log.local.retention.ms
    Time that records stay on the broker once in remote storage; -2 is `retention.ms`.
max.compaction.lag.ms LONG 9223372036854775807
max.message.bytes INT 1048588
message.timestamp.after.max.ms LONG 3600000
message.timestamp.before.max.ms LONG 9223372036854775807
message.timestamp.type STRING CreateTime
min.cleanable.dirty.ratio DOUBLE 0.5
min.compaction.lag.ms LONG 0
min.insync.replicas INT 1
preallocate BOOLEAN false synonym=log.preallocate
    Whether a new segment file is given its whole size at once.
remote.log.copy.disable BOOLEAN false
    Whether segments are no longer copied to remote storage.
remote.log.delete.on.disable BOOLEAN false
    Whether disabling remote storage deletes what is in it.
remote.storage.enable BOOLEAN false
    Whether old segments are kept in remote storage.
retention.bytes LONG -1
retention.ms LONG 604800000
segment.bytes INT 1073741824
segment.index.bytes INT 10485760
segment.jitter.ms LONG 0
segment.ms LONG 604800000
unclean.leader.election.enable BOOLEAN false
"""

GROUP_ROWS = """\
consumer.assignment.interval.ms INT 1000 0: synonym=group.consumer.assignment.interval.ms honoured
    Shortest time between two assignments of a consumer group.
consumer.heartbeat.interval.ms INT 5000 1: synonym=group.consumer.heartbeat.interval.ms honoured
    Time between two heartbeats of a member of a consumer group.
consumer.session.timeout.ms INT 45000 1: synonym=group.consumer.session.timeout.ms honoured
    Silence after which a member leaves its consumer group.
share.assignment.interval.ms INT 1000 0: synonym=group.share.assignment.interval.ms
    Shortest time between two assignments of a share group.
share.auto.offset.reset STRING latest
    Where a share group begins: `earliest`, `latest` or `by_duration:PT1H`.
share.delivery.count.limit INT 5 2: synonym=group.share.delivery.count.limit
    Times a record is delivered to a share group before it is given up.
share.heartbeat.interval.ms INT 5000 1: synonym=group.share.heartbeat.interval.ms
    Time between two heartbeats of a member of a share group.
share.isolation.level STRING read_uncommitted read_committed|read_uncommitted
    Whether a share group sees records of transactions that are not committed.
share.partition.max.record.locks INT 2000 100: synonym=group.share.partition.max.record.locks
    Records of a partition that a share group may hold at once.
share.record.lock.duration.ms INT 30000 1000: synonym=group.share.record.lock.duration.ms
    Time a member of a share group holds a record.
share.renew.acknowledge.enable BOOLEAN true
    Whether members may hold a record longer by renewing.
share.session.timeout.ms INT 45000 1: synonym=group.share.session.timeout.ms
    Silence after which a member leaves its share group.
streams.assignment.interval.ms INT 1000 0: synonym=group.streams.assignment.interval.ms
    Shortest time between two assignments of a streams group.
streams.heartbeat.interval.ms INT 5000 1: synonym=group.streams.heartbeat.interval.ms
    Time between two heartbeats of a member of a streams group.
streams.initial.rebalance.delay.ms INT 3000 0: synonym=group.streams.initial.rebalance.delay.ms
    Time a new streams group waits for members before it assigns tasks.
streams.num.standby.replicas INT 0 0: synonym=group.streams.num.standby.replicas
    Standby copies of each task of a streams group.
streams.session.timeout.ms INT 45000 1: synonym=group.streams.session.timeout.ms
    Silence after which a member leaves its streams group.
"""

CLIENT_METRICS_ROWS = """\
interval.ms INT 300000 100:3600000
    Time between two pushes of metrics of a client.
match LIST empty
    Clients that are meant, as `client_id=pattern` and the like; empty is all.
metrics LIST empty
    Prefixes of the names of the metrics that are wanted; `*` is all.
"""
