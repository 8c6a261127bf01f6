"""The steps in which Kafka's commands are run against a broker, in their order."""

from tests.compat.kafka_commands import Step

S = "--bootstrap-server {server}"
C = "--bootstrap-controller {controller}"
TOPIC = "commands"
COMPACTED = "commands-compacted"
SEGMENTS = "commands-segments"
TRANSACTION = "a-transaction"
HANGING = "a-hanging-transaction"
# Lines of a description of the quorum that are the same in every run.
_QUORUM = "^(ClusterId|LeaderId|CurrentVoters|CurrentObservers|NodeId|Exception)"

TOPICS = (
    Step("create a topic", "topics", f"{S} --create --topic {TOPIC} --partitions 2"),
    Step(
        "create a compacted topic",
        "topics",
        f"{S} --create --topic {COMPACTED} --config cleanup.policy=compact"
        " --config compression.type=zstd --config compression.zstd.level=7",
    ),
    Step(
        "create a topic with small segments",
        "topics",
        f"{S} --create --topic {SEGMENTS} --partitions 1 --config segment.bytes=1048576"
        " --config index.interval.bytes=100000 --config retention.ms=-1"
        " --config segment.ms=1000000000000000",
    ),
    Step("create a topic again", "topics", f"{S} --create --topic {TOPIC}", kept="exists"),
    Step(
        "create a topic with an unknown setting",
        "topics",
        f"{S} --create --topic nothing --config no.such.setting=1",
        kept="Unknown topic config",
    ),
    Step("list topics", "topics", f"{S} --list --exclude-internal"),
    Step("describe a topic", "topics", f"{S} --describe --topic {TOPIC}"),
    Step("describe a topic with settings", "topics", f"{S} --describe --topic {COMPACTED}"),
    Step(
        "describe under-replicated partitions",
        "topics",
        f"{S} --describe --under-replicated-partitions",
    ),
    Step("add partitions", "topics", f"{S} --alter --topic {TOPIC} --partitions 3"),
    Step(
        "remove partitions", "topics", f"{S} --alter --topic {TOPIC} --partitions 1", kept="^Error"
    ),
    Step(
        "produce",
        "producer",
        f"{S} --topic {TOPIC} --reader-property parse.key=true --reader-property key.separator=:",
        stdin="k:a\nk:b\nk:c\n",
    ),
    Step(
        "consume",
        "consumer",
        f"{S} --topic {TOPIC} --from-beginning --max-messages 3 --group readers",
    ),
    Step("end offsets", "get-offsets", f"{S} --topic {TOPIC}"),
    Step("earliest offsets", "get-offsets", f"{S} --topic {TOPIC} --time earliest"),
    Step("offsets by largest timestamp", "get-offsets", f"{S} --topic {SEGMENTS} --time -3"),
)

SETTINGS = (
    Step(
        "set settings of a topic",
        "configs",
        f"{S} --alter --entity-type topics --entity-name {TOPIC}"
        " --add-config retention.ms=1000000,local.retention.ms=-2",
    ),
    Step(
        "describe settings of a topic",
        "configs",
        f"{S} --describe --entity-type topics --entity-name {TOPIC}",
    ),
    Step(
        "describe all settings of a topic",
        "configs",
        f"{S} --describe --all --entity-type topics --entity-name {TOPIC}",
    ),
    Step(
        "delete settings of a topic",
        "configs",
        f"{S} --alter --entity-type topics --entity-name {TOPIC}"
        " --delete-config retention.ms,local.retention.ms",
    ),
    Step(
        "set settings of a broker",
        "configs",
        f"{S} --alter --entity-type brokers --entity-name 1"
        " --add-config log.cleaner.threads=2,num.io.threads=9",
    ),
    Step(
        "set settings of all brokers",
        "configs",
        f"{S} --alter --entity-type brokers --entity-default --add-config background.threads=11",
    ),
    Step(
        "describe settings of a broker",
        "configs",
        f"{S} --describe --entity-type brokers --entity-name 1",
    ),
    Step(
        "describe settings of all brokers",
        "configs",
        f"{S} --describe --entity-type brokers --entity-default",
    ),
    Step(
        "describe settings of a broker at a controller",
        "configs",
        f"{C} --describe --entity-type brokers --entity-name 1",
    ),
    Step(
        "set settings of all brokers at a controller",
        "configs",
        f"{C} --alter --entity-type brokers --entity-default --add-config background.threads=12",
    ),
    Step(
        "delete settings of a broker",
        "configs",
        f"{S} --alter --entity-type brokers --entity-name 1 --delete-config num.io.threads",
    ),
    Step(
        "set a setting that cannot change",
        "configs",
        f"{S} --alter --entity-type brokers --entity-name 1 --add-config node.id=7",
        kept="Exception",
    ),
    Step(
        "set settings of a group",
        "configs",
        f"{S} --alter --entity-type groups --entity-name readers"
        " --add-config consumer.session.timeout.ms=50000",
    ),
    Step(
        "describe settings of a group",
        "configs",
        f"{S} --describe --entity-type groups --entity-name readers",
    ),
    Step(
        "set the level of a logger",
        "configs",
        f"{S} --alter --entity-type broker-loggers --entity-name 1 --add-config root=WARN",
        kept="Completed|Error",
    ),
    Step(
        "describe loggers",
        "configs",
        f"{S} --describe --entity-type broker-loggers --entity-name 1",
        kept=r"root=",
    ),
    Step(
        "set a client metrics subscription",
        "client-metrics",
        f"{S} --alter --name watched --metrics org.apache.kafka.producer. --interval 30000",
    ),
    Step("describe client metrics", "client-metrics", f"{S} --describe --name watched"),
    Step("list client metrics", "client-metrics", f"{S} --list"),
    Step("delete client metrics", "client-metrics", f"{S} --delete --name watched"),
    Step("describe users", "configs", f"{S} --describe --entity-type users"),
    Step(
        "set a quota",
        "configs",
        f"{S} --alter --entity-type clients --entity-name a --add-config producer_byte_rate=1000",
        kept="Completed|Exception",
    ),
    Step("describe quotas", "configs", f"{S} --describe --entity-type clients"),
)

GROUPS = (
    Step("list groups", "groups", f"{S} --list"),
    Step("list consumer groups", "consumer-groups", f"{S} --list --state"),
    Step("describe a group", "consumer-groups", f"{S} --describe --group readers"),
    Step(
        "describe the state of a group",
        "consumer-groups",
        f"{S} --describe --group readers --state",
    ),
    Step(
        "describe the members of a group",
        "consumer-groups",
        f"{S} --describe --group readers --members --verbose",
    ),
    Step("describe a group that is not", "consumer-groups", f"{S} --describe --group nobody"),
    Step(
        "reset offsets",
        "consumer-groups",
        f"{S} --reset-offsets --group readers --topic {TOPIC} --to-earliest --execute",
    ),
    Step(
        "shift offsets in a file",
        "consumer-groups",
        f"{S} --reset-offsets --group readers --topic {TOPIC} --shift-by 1 --dry-run --export",
    ),
    Step(
        "delete offsets",
        "consumer-groups",
        f"{S} --delete-offsets --group readers --topic {TOPIC}",
    ),
    Step("delete a group", "consumer-groups", f"{S} --delete --group readers"),
    Step("list share groups", "share-groups", f"{S} --list"),
    Step(
        "consume in a share group",
        "share-consumer",
        f"{S} --topic {TOPIC} --group sharers --timeout-ms 3000",
        kept="Unsupported|Processed",
    ),
    Step(
        "describe a share group",
        "share-groups",
        f"{S} --describe --group sharers",
        kept="Error|sharers",
    ),
    Step("list streams groups", "streams-groups", f"{S} --list"),
)

REASSIGNMENTS = (
    Step(
        "propose a reassignment",
        "reassign",
        f"{S} --generate --topics-to-move-json-file {{moved}} --broker-list 1",
    ),
    Step(
        "reassign with a throttle",
        "reassign",
        f"{S} --execute --reassignment-json-file {{plan}} --throttle 1000000",
    ),
    Step(
        "throttles are set",
        "configs",
        f"{S} --describe --entity-type brokers --entity-name 1",
        kept="throttled",
    ),
    Step("verify a reassignment", "reassign", f"{S} --verify --reassignment-json-file {{plan}}"),
    Step(
        "throttles of a topic are gone",
        "configs",
        f"{S} --describe --entity-type topics --entity-name {TOPIC}",
    ),
    Step(
        "throttles of a broker are gone",
        "configs",
        f"{S} --describe --entity-type brokers --entity-name 1",
        kept="throttled",
    ),
    Step(
        "reassign to brokers that are not",
        "reassign",
        f"{S} --execute --reassignment-json-file {{lost_plan}}",
        kept="exist|Error",
    ),
    Step("cancel a reassignment", "reassign", f"{S} --cancel --reassignment-json-file {{plan}}"),
    Step("list reassignments", "reassign", f"{S} --list"),
    Step(
        "reassign to a directory",
        "reassign",
        f"{S} --execute --reassignment-json-file {{dir_plan}}",
    ),
    Step(
        "verify directories",
        "reassign",
        f"{S} --verify --reassignment-json-file {{dir_plan}}",
    ),
    Step("reassign at a controller", "reassign", f"{C} --list"),
    Step(
        "describe directories",
        "log-dirs",
        f"{S} --describe --topic-list {COMPACTED}",
        kept=r'(\{"partition":.*?\})|Error',
    ),
)

TRANSACTIONS = (
    Step("list transactions", "transactions", f"{S} list"),
    Step("list transactions that last", "transactions", f"{S} list --duration-filter 3600000"),
    Step(
        "list transactions by pattern", "transactions", f"{S} list --transactional-id-pattern a-t.*"
    ),
    Step(
        "list transactions by a broken pattern",
        "transactions",
        f"{S} list --transactional-id-pattern a[",
        kept="^(Error|.*Exception: )",
    ),
    Step(
        "describe a transaction",
        "transactions",
        f"{S} describe --transactional-id {TRANSACTION}",
    ),
    Step(
        "describe producers",
        "transactions",
        f"{S} describe-producers --topic {TOPIC} --partition 0 --broker-id 1",
    ),
    Step("find hanging transactions", "transactions", f"{S} find-hanging --broker-id 1"),
    Step(
        "abort an open transaction",
        "transactions",
        f"{S} abort --topic {TOPIC} --partition 1 --start-offset {{open_offset}}",
    ),
    Step(
        "end an open transaction",
        "transactions",
        f"{S} forceTerminateTransaction --transactionalId {HANGING}",
    ),
)

CLUSTER = (
    Step("describe features", "features", f"{S} describe"),
    Step("describe features at a controller", "features", f"{C} describe"),
    Step("describe features of a node", "features", f"{S} describe --node-id 1"),
    Step(
        "downgrade a feature",
        "features",
        f"{S} downgrade --feature transaction.version=1",
    ),
    Step("upgrade a feature", "features", f"{C} upgrade --feature transaction.version=2"),
    Step("try an upgrade", "features", f"{S} upgrade --feature group.version=1 --dry-run"),
    Step(
        "upgrade beyond the last level",
        "features",
        f"{S} upgrade --feature transaction.version=99",
    ),
    Step("upgrade an unknown feature", "features", f"{S} upgrade --feature nothing=1"),
    Step("disable a feature", "features", f"{S} disable --feature transaction.version --dry-run"),
    Step("levels of a release", "features", f"{S} version-mapping --release-version 4.2"),
    Step("quorum status", "quorum", f"{S} describe --status", kept=_QUORUM),
    Step("quorum status at a controller", "quorum", f"{C} describe --status", kept=_QUORUM),
    Step(
        "quorum replication",
        "quorum",
        f"{S} describe --replication",
        kept=r"^(NodeId.*|1 .*\bLeader)",
    ),
    Step(
        "quorum replication at a controller",
        "quorum",
        f"{C} describe --replication",
        kept="^NodeId|Leader",
    ),
    Step(
        "remove a controller that is not",
        "quorum",
        f"{C} remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAAACQ",
        kept="Exception",
    ),
    Step("cluster id", "cluster", f"cluster-id {S}"),
    Step("cluster id at a controller", "cluster", f"cluster-id {C}"),
    Step("endpoints", "cluster", f"list-endpoints {S}"),
    Step("endpoints at a controller", "cluster", f"list-endpoints {C}"),
    Step("unregister a broker that is not", "cluster", f"unregister {S} --id 77"),
    Step("api versions", "api-versions", f"{S}"),
    Step(
        "elect leaders", "leader-election", f"{S} --election-type preferred --all-topic-partitions"
    ),
    Step("delete records", "delete-records", f"{S} --offset-json-file {{deletions}}"),
    Step("list ACLs", "acls", f"{S} --list", kept="Exception"),
    Step(
        "add an ACL",
        "acls",
        f"{S} --add --allow-principal User:a --operation Read --topic {TOPIC}",
        kept="Exception",
    ),
    Step(
        "describe delegation tokens",
        "delegation-tokens",
        f"{S} --describe --command-config {{empty}}",
        kept="Exception",
    ),
    Step("delete a topic", "topics", f"{S} --delete --topic {COMPACTED}"),
)

# Files of the logs that the steps above and `SEGMENTS` have filled.
FILES = (
    Step("dump a log", "dump-log", "--files {log} --print-data-log", ordered=True),
    Step("dump batches", "dump-log", "--files {segment}", ordered=True),
    Step("dump an index", "dump-log", "--files {index}", ordered=True),
    Step("check an index", "dump-log", "--files {index} --index-sanity-check"),
    Step("dump a time index", "dump-log", "--files {time_index}", ordered=True),
    Step("dump a transaction index", "dump-log", "--files {transaction_index}", ordered=True),
    Step("dump a producer snapshot", "dump-log", "--files {snapshot}"),
    Step(
        "dump offsets",
        "dump-log",
        "--files {offsets} --offsets-decoder --skip-record-metadata",
        kept="key: |Exception|Error|isvalid: false",
    ),
    Step(
        "dump transactions",
        "dump-log",
        "--files {transactions} --transaction-log-decoder --skip-record-metadata",
        kept="key: |Exception|Error|isvalid: false",
    ),
    Step(
        "dump metadata",
        "dump-log",
        "--files {metadata} --cluster-metadata-decoder --skip-record-metadata",
        kept=r'("type":"\w+","version":\d+|LeaderChange|Exception|Error|isvalid: false)',
        once=True,
    ),
    Step(
        "dump a snapshot of the metadata",
        "dump-log",
        "--files {checkpoint} --cluster-metadata-decoder --skip-record-metadata",
        kept=r'("type":"\w+","version":\d+|Snapshot\w+|Exception|Error|isvalid: false)',
        once=True,
    ),
    Step(
        "dump the state of share groups",
        "dump-log",
        "--files {shares} --share-group-state-decoder --skip-record-metadata",
        kept="payload|Exception|Error",
    ),
    Step("list metadata", "metadata-shell", "--snapshot {checkpoint} ls /image", until="topics"),
    Step(
        "walk the topics of metadata",
        "metadata-shell",
        "--snapshot {checkpoint} find /image/topics/byName",
        until=f"/{TOPIC}/2",
    ),
    Step(
        "show a partition of metadata",
        "metadata-shell",
        f"--snapshot {{checkpoint}} cat /image/topics/byName/{TOPIC}/0",
        until="Registration",
    ),
    Step(
        "show a broker of metadata",
        "metadata-shell",
        "--snapshot {checkpoint} cat /image/cluster/brokers/1",
        until="Registration",
    ),
    Step(
        "show features of metadata",
        "metadata-shell",
        "--snapshot {checkpoint} find /image/features",
        until="transaction.version",
    ),
)
STEPS = (*TOPICS, *SETTINGS, *GROUPS, *REASSIGNMENTS, *TRANSACTIONS, *CLUSTER, *FILES)
