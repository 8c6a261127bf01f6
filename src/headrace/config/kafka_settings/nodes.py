"""Broker settings of Kafka 4.3 about nodes, connections, requests and metrics"""

ROWS = """\
advertised.listeners LIST null
alter.config.policy.class.name CLASS null
    Java class that may refuse changes of settings.
auto.create.topics.enable BOOLEAN true
auto.leader.rebalance.enable BOOLEAN true
background.threads INT 10 1: cluster-wide
    Threads for background work.
broker.heartbeat.interval.ms INT 2000
broker.id INT -1
broker.rack STRING null
broker.session.timeout.ms INT 9000
client.quota.callback.class CLASS null
    Java class that decides the quotas of clients.
config.providers LIST empty cluster-wide
    Names of Java classes that fill in values written as `${name:key}`.
connections.max.idle.ms LONG 600000
controlled.shutdown.enable BOOLEAN true
controller.listener.names LIST required
controller.performance.always.log.threshold.ms LONG 2000 0: internal
    Controller events that take longer are logged as errors.
controller.performance.sample.period.ms LONG 60000 100: internal
    Time between log messages about the speed of the controller.
controller.quorum.append.linger.ms INT 25 0:
    Time the active controller gathers records before it writes them.
controller.quorum.auto.join.enable BOOLEAN false
    Whether a new controller adds itself to the voters.
controller.quorum.bootstrap.servers LIST empty
controller.quorum.election.backoff.max.ms INT 1000
controller.quorum.election.timeout.ms INT 1000
controller.quorum.fetch.max.bytes INT 1048576 1:
    Bytes of the metadata log that one fetch asks for.
controller.quorum.fetch.snapshot.max.bytes INT 1048576 1:
    Bytes of a metadata snapshot that one fetch asks for.
controller.quorum.fetch.timeout.ms INT 2000
controller.quorum.request.timeout.ms INT 2000
controller.quorum.retry.backoff.ms INT 20 0:
    Pause before a failed request between controllers is tried again.
controller.quorum.voters LIST empty
controller.quota.window.num INT 11 1:
    Samples kept for quotas on topic changes.
controller.quota.window.size.seconds INT 1 1:
    Length of a sample for quotas on topic changes.
controller.socket.timeout.ms INT 30000
    Time a request from the controller to a broker may take.
create.topic.policy.class.name CLASS null
    Java class that may refuse new topics.
initial.broker.registration.timeout.ms INT 60000
    Time a starting broker tries to register before it gives up.
inter.broker.listener.name STRING null
kafka.metrics.polling.interval.secs INT 10 1:
    Time between two polls of `kafka.metrics.reporters`.
kafka.metrics.reporters LIST empty
    Java classes that report metrics of the broker.
listeners LIST PLAINTEXT://:9092 per-broker
max.connection.creation.rate INT 2147483647 0: cluster-wide
    Connections accepted in a second.
max.connections INT 2147483647 cluster-wide
max.connections.per.ip INT 2147483647 cluster-wide
max.connections.per.ip.overrides STRING empty cluster-wide
    Limits of single addresses, as `host:limit`, instead of `max.connections.per.ip`.
max.incremental.fetch.session.cache.slots INT 1000
max.request.partition.size.limit INT 2000 1:
    Partitions that one DescribeTopicPartitions answers with.
metric.reporters LIST org.apache.kafka.common.metrics.JmxReporter cluster-wide
    Java classes that report metrics.
metrics.num.samples INT 2 1:
    Samples kept to compute a metric.
metrics.recording.level STRING INFO
    Which metrics are recorded.
metrics.sample.window.ms LONG 30000 1:
    Length of a sample of a metric.
node.id INT required
num.io.threads INT 8 1: cluster-wide
    Threads that work on requests.
num.network.threads INT 3 1: cluster-wide
    Threads that read requests and write answers.
process.roles LIST required
producer.purgatory.purge.interval.requests INT 1000
    Finished produce requests after which their memory is freed.
queued.max.request.bytes LONG -1
queued.max.requests INT 500 1:
    Requests that may wait for a thread.
quota.window.num INT 11 1:
    Samples kept for quotas of clients.
quota.window.size.seconds INT 1 1:
    Length of a sample for quotas of clients.
request.timeout.ms INT 30000
    Time that a request from this node to another may take.
server.max.startup.time.ms LONG 9223372036854775807 0: internal
    Time that a start may take; for tests.
socket.connection.setup.timeout.max.ms LONG 30000
    Longest time that connecting to another node may take.
socket.connection.setup.timeout.ms LONG 10000
    Time that the first try to connect to another node may take.
socket.listen.backlog.size INT 50 1:
    Connections that may wait to be accepted.
socket.receive.buffer.bytes INT 102400
    Receive buffer of a client's socket; -1 leaves it to the system.
socket.request.max.bytes INT 104857600
socket.send.buffer.bytes INT 102400
    Send buffer of a client's socket; -1 leaves it to the system.
telemetry.max.bytes INT 1048576 1:
    Largest push of metrics that a client may send.
unstable.api.versions.enable BOOLEAN false internal
    Whether versions of APIs that are not stable are served.
unstable.feature.versions.enable BOOLEAN false internal
    Whether feature levels that are not stable may be used.
"""
