"""Broker settings of Kafka 4.3 about logs, replication and remote storage"""

ROWS = """\
alter.log.dirs.replication.quota.window.num INT 11 1:
    Samples kept to measure copies between log directories.
alter.log.dirs.replication.quota.window.size.seconds INT 1 1:
    Length of a sample of copies between log directories.
compression.gzip.level INT -1 cluster-wide
compression.lz4.level INT 9 cluster-wide
compression.type STRING producer cluster-wide
compression.zstd.level INT 3 cluster-wide
cordoned.log.dirs LIST empty per-broker
    Log directories that take no new partitions.
default.replication.factor INT 1
delete.records.purgatory.purge.interval.requests INT 1
    Finished DeleteRecords requests after which their memory is freed.
delete.topic.enable BOOLEAN true
fetch.max.bytes INT 57671680
fetch.purgatory.purge.interval.requests INT 1000
    Finished fetches after which their memory is freed.
follower.fetch.last.tiered.offset.enable BOOLEAN false cluster-wide
    Whether an empty follower begins after what is in remote storage.
follower.replication.throttled.rate LONG 9223372036854775807 cluster-wide internal
internal.metadata.delete.delay.millis LONG 60000 internal
    Time before a deleted file of the metadata log is removed; for tests.
internal.metadata.log.segment.bytes INT null internal
    Segment size of the metadata log; for tests.
internal.metadata.max.batch.size.in.bytes INT 8388608 internal
    Largest batch of the metadata log; for tests.
leader.imbalance.check.interval.seconds LONG 300
leader.replication.throttled.rate LONG 9223372036854775807 cluster-wide internal
log.cleaner.backoff.ms LONG 15000 cluster-wide
log.cleaner.dedupe.buffer.size LONG 134217728 cluster-wide
log.cleaner.delete.retention.ms LONG 86400000 cluster-wide
log.cleaner.enable BOOLEAN true
log.cleaner.io.buffer.load.factor DOUBLE 0.9 cluster-wide
log.cleaner.io.buffer.size INT 524288 cluster-wide
log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308 cluster-wide
log.cleaner.max.compaction.lag.ms LONG 9223372036854775807 cluster-wide
log.cleaner.min.cleanable.ratio DOUBLE 0.5 cluster-wide
log.cleaner.min.compaction.lag.ms LONG 0 cluster-wide
log.cleaner.threads INT 1 0: cluster-wide
    Threads that compact logs.
log.cleanup.policy LIST delete cluster-wide
log.dir LIST /tmp/kafka-logs
log.dir.failure.timeout.ms LONG 30000 1:
    Time to report a failed log directory before the broker stops.
log.dirs LIST null
log.flush.interval.messages LONG 9223372036854775807 cluster-wide
log.flush.interval.ms LONG null cluster-wide
log.flush.offset.checkpoint.interval.ms INT 60000
log.flush.scheduler.interval.ms LONG 9223372036854775807
log.flush.start.offset.checkpoint.interval.ms INT 60000 0:
    Time between two writes of log start offsets to disk.
log.index.interval.bytes INT 4096 cluster-wide
log.index.size.max.bytes INT 10485760 cluster-wide
log.initial.task.delay.ms LONG 30000 0: internal
    Delay of the first background task on logs; for tests.
log.local.retention.bytes LONG -2 -2: cluster-wide
    Default of the topic setting `local.retention.bytes`.
log.local.retention.ms LONG -2 -2: cluster-wide
    Default of the topic setting `local.retention.ms`.
log.message.timestamp.after.max.ms LONG 3600000 cluster-wide
log.message.timestamp.before.max.ms LONG 9223372036854775807 cluster-wide
log.message.timestamp.type STRING CreateTime cluster-wide
log.preallocate BOOLEAN false cluster-wide
    Default of the topic setting `preallocate`.
log.retention.bytes LONG -1 cluster-wide
log.retention.check.interval.ms LONG 300000
log.retention.hours INT 168
log.retention.minutes INT null
log.retention.ms LONG null cluster-wide
log.roll.hours INT 168
log.roll.jitter.hours INT 0
log.roll.jitter.ms LONG null cluster-wide
log.roll.ms LONG null cluster-wide
log.segment.bytes INT 1073741824 cluster-wide
log.segment.delete.delay.ms LONG 60000 cluster-wide
message.max.bytes INT 1048588 cluster-wide
metadata.log.dir STRING null
    Directory of the metadata log, if it is not the first of `log.dirs`.
metadata.log.max.record.bytes.between.snapshots LONG 20971520
metadata.log.max.snapshot.interval.ms LONG 3600000 0:
    Longest time between two snapshots of changing metadata.
metadata.log.segment.bytes INT 1073741824 8388608:
    Segment size of the metadata log.
metadata.log.segment.ms LONG 604800000
    Age at which a segment of the metadata log is closed.
metadata.max.idle.interval.ms INT 500 0:
    Time after which an idle active controller writes an empty record.
metadata.max.retention.bytes LONG 104857600
    Bytes of old metadata segments and snapshots that are kept.
metadata.max.retention.ms LONG 604800000
    Time that old metadata segments and snapshots are kept.
min.insync.replicas INT 1 cluster-wide
num.partitions INT 1
num.recovery.threads.per.data.dir INT 2 1: cluster-wide
    Threads that recover and close the logs of a directory.
num.replica.alter.log.dirs.threads INT null
    Threads that move replicas between log directories.
num.replica.fetchers INT 1 1: cluster-wide
    Threads that fetch from each leader.
remote.fetch.max.wait.ms INT 500 1: cluster-wide
    Time that a fetch waits for remote storage.
remote.list.offsets.request.timeout.ms LONG 30000 1: cluster-wide
    Time that ListOffsets waits for remote storage.
remote.log.index.file.cache.total.size.bytes LONG 1073741824 1: cluster-wide
    Bytes of index files kept from remote storage.
remote.log.index.file.cache.ttl.ms LONG 900000 -1: internal
    Time after which an unused index file of remote storage is dropped.
remote.log.manager.copier.thread.pool.size INT 10 1: cluster-wide
    Threads that copy segments to remote storage.
remote.log.manager.copy.max.bytes.per.second LONG 9223372036854775807 1: cluster-wide
    Bytes a second that are copied to remote storage.
remote.log.manager.copy.quota.window.num INT 11 1:
    Samples kept to measure copies to remote storage.
remote.log.manager.copy.quota.window.size.seconds INT 1 1:
    Length of a sample of copies to remote storage.
remote.log.manager.expiration.thread.pool.size INT 10 1: cluster-wide
    Threads that delete expired segments of remote storage.
remote.log.manager.fetch.max.bytes.per.second LONG 9223372036854775807 1: cluster-wide
    Bytes a second that are read from remote storage.
remote.log.manager.fetch.quota.window.num INT 11 1:
    Samples kept to measure reads of remote storage.
remote.log.manager.fetch.quota.window.size.seconds INT 1 1:
    Length of a sample of reads of remote storage.
remote.log.manager.follower.thread.pool.size INT 2 1: cluster-wide
    Threads that follow what is in remote storage.
remote.log.manager.task.interval.ms LONG 30000 1:
    Time between two rounds of work on remote storage.
remote.log.manager.task.retry.backoff.max.ms LONG 30000 1: internal
    Longest pause before work on remote storage is tried again.
remote.log.manager.task.retry.backoff.ms LONG 500 1: internal
    First pause before work on remote storage is tried again.
remote.log.manager.task.retry.jitter DOUBLE 0.2 0:0.5 internal
    Random part of the pauses between tries.
remote.log.manager.thread.pool.size INT 2 1:
    Older name of `remote.log.manager.follower.thread.pool.size`.
remote.log.metadata.custom.metadata.max.bytes INT 128 0:
    Bytes of metadata that a remote storage plugin may add to a segment.
remote.log.metadata.manager.class.name STRING \
org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
    Java class that keeps the metadata of remote storage.
remote.log.metadata.manager.class.path STRING null
    Class path of `remote.log.metadata.manager.class.name`.
remote.log.metadata.manager.impl.prefix STRING rlmm.config.
    Prefix of settings for `remote.log.metadata.manager.class.name`.
remote.log.metadata.manager.listener.name STRING null
    Listener that `remote.log.metadata.manager.class.name` connects to.
remote.log.reader.max.pending.tasks INT 100 1:
    Reads of remote storage that may wait.
remote.log.reader.threads INT 10 1: cluster-wide
    Threads that read remote storage.
remote.log.storage.manager.class.name STRING null
    Java class of the remote storage.
remote.log.storage.manager.class.path STRING null
    Class path of `remote.log.storage.manager.class.name`.
remote.log.storage.manager.impl.prefix STRING rsm.config.
    Prefix of settings for `remote.log.storage.manager.class.name`.
remote.log.storage.system.enable BOOLEAN false
    Whether topics may keep old segments in remote storage.
replica.alter.log.dirs.io.max.bytes.per.second LONG 9223372036854775807 0: cluster-wide internal
    Bytes a second that are copied between log directories.
replica.fetch.backoff.ms INT 1000
replica.fetch.max.bytes INT 1048576
replica.fetch.min.bytes INT 1
replica.fetch.response.max.bytes INT 10485760
replica.fetch.wait.max.ms INT 500
replica.high.watermark.checkpoint.interval.ms LONG 5000
replica.lag.time.max.ms LONG 30000
replica.selector.class STRING null
replica.socket.receive.buffer.bytes INT 65536
    Receive buffer of a follower's socket.
replica.socket.timeout.ms INT 30000
replication.quota.window.num INT 11 1:
    Samples kept to measure throttled replication.
replication.quota.window.size.seconds INT 1 1:
    Length of a sample of throttled replication.
unclean.leader.election.enable BOOLEAN false cluster-wide
unclean.leader.election.interval.ms LONG 300000 1: internal
    Time between two searches for partitions that need an unclean election.
"""
