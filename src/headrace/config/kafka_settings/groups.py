"""Broker settings of Kafka 4.3 about groups, transactions and share groups"""

ROWS = """\
add.partitions.to.txn.retry.backoff.max.ms INT 100 0:
    Longest time a leader keeps trying to add a partition to a transaction.
add.partitions.to.txn.retry.backoff.ms INT 20 1:
    Pause before a leader tries again to add a partition to a transaction.
group.consumer.assignment.interval.ms INT 1000 cluster-wide
group.consumer.assignors LIST uniform,range
group.consumer.heartbeat.interval.ms INT 5000
group.consumer.max.assignment.interval.ms INT 15000
group.consumer.max.heartbeat.interval.ms INT 15000
group.consumer.max.session.timeout.ms INT 60000
group.consumer.max.size INT 2147483647
group.consumer.migration.policy STRING bidirectional
group.consumer.min.assignment.interval.ms INT 0
group.consumer.min.heartbeat.interval.ms INT 5000
group.consumer.min.session.timeout.ms INT 45000
group.consumer.regex.refresh.interval.ms INT 600000 10000: internal
    Time between two looks for topics that match a group's pattern.
group.consumer.session.timeout.ms INT 45000
group.coordinator.append.linger.ms INT -1 -1:
    Time the group coordinator gathers records; -1 adapts it to the load.
group.coordinator.background.threads INT 2 1:
    Threads of the group coordinator for slow work.
group.coordinator.cached.buffer.max.bytes INT 1048588 524288: cluster-wide
    Largest write buffer the group coordinator keeps for reuse.
group.coordinator.rebalance.protocols LIST classic,consumer,streams
group.coordinator.threads INT 4 1:
    Threads of the group coordinator.
group.initial.rebalance.delay.ms INT 3000
group.max.session.timeout.ms INT 1800000
group.max.size INT 2147483647
group.min.session.timeout.ms INT 6000
group.share.assignment.interval.ms INT 1000 0: cluster-wide
    Shortest time between two assignments of a share group.
group.share.assignors LIST simple
    Assignor of the broker for share groups.
group.share.delivery.count.limit INT 5 2:10
    Times a record is delivered to a share group before it is given up.
group.share.heartbeat.interval.ms INT 5000 1:
    Time between two heartbeats of a member of a share group.
group.share.initialize.retry.interval.ms INT 30000 1: internal
    Pause before the state of a share group is initialized again.
group.share.max.assignment.interval.ms INT 15000 0:
    Largest `share.assignment.interval.ms` of a group.
group.share.max.delivery.count.limit INT 10 5:25
    Largest `share.delivery.count.limit` of a group.
group.share.max.heartbeat.interval.ms INT 15000 1:
    Largest `share.heartbeat.interval.ms` of a group.
group.share.max.partition.max.record.locks INT 4000 2000:10000
    Largest `share.partition.max.record.locks` of a group.
group.share.max.record.lock.duration.ms INT 60000 30000:3600000
    Largest `share.record.lock.duration.ms` of a group.
group.share.max.session.timeout.ms INT 60000 1:
    Largest `share.session.timeout.ms` of a group.
group.share.max.share.sessions INT 2000 1:
    Most share sessions of one broker.
group.share.max.size INT 200 1:1000
    Most members of a share group.
group.share.min.assignment.interval.ms INT 0 0:
    Smallest `share.assignment.interval.ms` of a group.
group.share.min.delivery.count.limit INT 2 2:5
    Smallest `share.delivery.count.limit` of a group.
group.share.min.heartbeat.interval.ms INT 5000 1:
    Smallest `share.heartbeat.interval.ms` of a group.
group.share.min.partition.max.record.locks INT 100 100:2000
    Smallest `share.partition.max.record.locks` of a group.
group.share.min.record.lock.duration.ms INT 15000 1000:30000
    Smallest `share.record.lock.duration.ms` of a group.
group.share.min.session.timeout.ms INT 45000 1:
    Smallest `share.session.timeout.ms` of a group.
group.share.partition.max.record.locks INT 2000 100:10000
    Records of a partition that a share group may hold at once.
group.share.persister.class.name STRING \
org.apache.kafka.server.share.persister.DefaultStatePersister internal
    Java class that keeps the state of share groups.
group.share.record.lock.duration.ms INT 30000 1000:3600000
    Time a member of a share group holds a record.
group.share.session.timeout.ms INT 45000 1:
    Silence after which a member leaves its share group.
group.streams.assignment.interval.ms INT 1000 0: cluster-wide
    Shortest time between two assignments of a streams group.
group.streams.heartbeat.interval.ms INT 5000 1:
    Time between two heartbeats of a member of a streams group.
group.streams.initial.rebalance.delay.ms INT 3000 0:
    Time a new streams group waits for members before it assigns tasks.
group.streams.max.assignment.interval.ms INT 15000 0:
    Largest `streams.assignment.interval.ms` of a group.
group.streams.max.heartbeat.interval.ms INT 15000 1:
    Largest `streams.heartbeat.interval.ms` of a group.
group.streams.max.session.timeout.ms INT 60000 1:
    Largest `streams.session.timeout.ms` of a group.
group.streams.max.size INT 2147483647 1:
    Most members of a streams group.
group.streams.max.standby.replicas INT 2 0:
    Largest `streams.num.standby.replicas` of a group.
group.streams.min.assignment.interval.ms INT 0 0:
    Smallest `streams.assignment.interval.ms` of a group.
group.streams.min.heartbeat.interval.ms INT 5000 1:
    Smallest `streams.heartbeat.interval.ms` of a group.
group.streams.min.session.timeout.ms INT 45000 1:
    Smallest `streams.session.timeout.ms` of a group.
group.streams.num.standby.replicas INT 0 0:
    Standby copies of each task of a streams group.
group.streams.session.timeout.ms INT 45000 1:
    Silence after which a member leaves its streams group.
offset.metadata.max.bytes INT 4096
offsets.commit.timeout.ms INT 5000 1:
    Time that a commit waits for the replicas of `__consumer_offsets`.
offsets.load.buffer.size INT 5242880 1:
    Bytes read at once when offsets are loaded.
offsets.retention.check.interval.ms LONG 600000
offsets.retention.minutes INT 10080
offsets.topic.compression.codec INT 0
    Codec of `__consumer_offsets`, by its number.
offsets.topic.num.partitions INT 50
offsets.topic.replication.factor SHORT 3
offsets.topic.segment.bytes INT 104857600
producer.id.expiration.check.interval.ms INT 600000 1: internal
    Time between two searches for expired producer ids.
producer.id.expiration.ms INT 86400000 cluster-wide
share.coordinator.append.linger.ms INT -1 -1:
    Time the share coordinator gathers records; -1 adapts it to the load.
share.coordinator.cached.buffer.max.bytes INT 1048588 524288: cluster-wide
    Largest write buffer the share coordinator keeps for reuse.
share.coordinator.cold.partition.snapshot.interval.ms INT 300000 1: internal
    Time between snapshots of share partitions that do not change.
share.coordinator.load.buffer.size INT 5242880 1:
    Bytes read at once when share state is loaded.
share.coordinator.snapshot.update.records.per.snapshot INT 500 0:500
    Updates of share state between two snapshots.
share.coordinator.state.topic.compression.codec INT 0
    Codec of `__share_group_state`, by its number.
share.coordinator.state.topic.min.isr SHORT 2 1:
    `min.insync.replicas` of `__share_group_state`.
share.coordinator.state.topic.num.partitions INT 50 1:
    Partitions of `__share_group_state`.
share.coordinator.state.topic.prune.interval.ms INT 300000 1: internal
    Time between two deletions of old share state.
share.coordinator.state.topic.replication.factor SHORT 3 1:
    Replicas of `__share_group_state`.
share.coordinator.state.topic.segment.bytes INT 104857600 1:
    Segment size of `__share_group_state`.
share.coordinator.threads INT 1 1:
    Threads of the share coordinator.
share.coordinator.write.timeout.ms INT 5000 1:
    Time that a write of share state waits for replicas.
share.fetch.purgatory.purge.interval.requests INT 1000
    Finished share fetches after which their memory is freed.
transaction.abort.timed.out.transaction.cleanup.interval.ms INT 10000 1:
    Time between two searches for transactions that timed out.
transaction.max.timeout.ms INT 900000
transaction.partition.verification.enable BOOLEAN true cluster-wide
transaction.remove.expired.transaction.cleanup.interval.ms INT 3600000 1:
    Time between two searches for expired transactional ids.
transaction.state.log.load.buffer.size INT 5242880 1:
    Bytes read at once when transactions are loaded.
transaction.state.log.min.isr INT 2
transaction.state.log.num.partitions INT 50
transaction.state.log.replication.factor SHORT 3
transaction.state.log.segment.bytes INT 104857600
transaction.two.phase.commit.enable BOOLEAN false
    Whether another system may coordinate a transaction.
transactional.id.expiration.ms INT 604800000
"""
