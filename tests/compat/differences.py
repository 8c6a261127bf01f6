"""What Kafka's Java Admin client and Kafka's commands do otherwise with headrace, and why.

docs/compatibility.md has this as a table, made by tools/make_tool_differences.py. The tests of this
directory fail if a difference is not listed, or if one that is listed is gone.
"""

import re
from typing import NamedTuple


class Difference(NamedTuple):
    """A reason, the methods of Admin and the steps of command_steps.py that show it.

    `parts` is a pattern of the parts of an answer that differ; without it all of it may.
    """

    reason: str
    methods: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    parts: str = r"(?s).+"


def _feature(name: str) -> str:
    """The pattern of a feature in what Admin, kafka-features and kafka-metadata-shell print."""
    escaped = re.escape(name)
    starts = r"Feature: |finalized |supported |/image/features/finalized_"
    return rf"^(?:{starts}){escaped}.*$|{escaped}: \d-\d, "


_FEATURES = (
    "describe features",
    "describe features at a controller",
    "describe features of a node",
)
_METADATA_FEATURES = ("show a broker of metadata", "show features of metadata")

_SHARE = "There are no share groups (KIP-932) yet."
_STREAMS = "There are no streams groups (KIP-1071) yet."
_MIN_ISR = (
    "With eligible leader replicas (KIP-966) Kafka records the cluster's `min.insync.replicas`, and"
    " what brokers have of their own counts no more. headrace does so for a value above 1: with 1"
    " no broker can be below what the controller counts with."
)
_CLEAR = (
    "A new `min.insync.replicas` clears the eligible leader replicas of each partition by a record"
    " of that partition, where there are any and somebody is in sync."
)
_TELEMETRY = (
    "The broker itself receives the metrics of clients, so it always announces the APIs for them;"
    " Kafka needs a plugin."
)
_VOTERS = (
    "Voters that `controller.quorum.voters` names can be added and removed; the first change raises"
    " `kraft.version` to 1. Kafka refuses changes until an operator has raised it."
)

DIFFERENCES: tuple[Difference, ...] = (
    # -- what is not here yet
    Difference(
        _SHARE,
        methods=(
            "describeShareGroups",
            "alterShareGroupOffsets",
            "listShareGroupOffsets",
            "deleteShareGroupOffsets",
            "deleteShareGroups",
        ),
        steps=("describe a share group", "dump the state of share groups"),
    ),
    Difference(
        _SHARE,
        steps=("api versions", "dump offsets", "walk the topics of metadata"),
        parts=r'^\w*Share\w*\(\d+\): .*$|^.*"sharers".*$|^.*/__share_group_state\b.*$',
    ),
    Difference(
        _SHARE,
        methods=("describeFeatures",),
        steps=(*_FEATURES, *_METADATA_FEATURES),
        parts=_feature("share.version"),
    ),
    Difference(_STREAMS, methods=("describeStreamsGroups",)),
    Difference(_STREAMS, steps=("api versions",), parts=r"^StreamsGroup\w*\(\d+\): .*$"),
    Difference(
        _STREAMS,
        methods=("describeFeatures",),
        steps=(*_FEATURES, *_METADATA_FEATURES),
        parts=_feature("streams.version"),
    ),
    Difference(
        _MIN_ISR,
        methods=("describeConfigs",),
        steps=("describe all settings of a topic", "describe settings of all brokers"),
        parts=r"^min\.insync\.replicas=.*$",
    ),
    Difference(
        _MIN_ISR,
        steps=("describe a topic", "describe a topic with settings"),
        parts=r" ?\bmin\.insync\.replicas=1,?",
    ),
    Difference(_CLEAR, steps=("dump metadata",), parts=r'^"type":"CLEAR_ELR_RECORD".*$'),
    # -- what is otherwise on purpose
    Difference(
        "Topics have a setting that Kafka does not have: `encryption.enable` has their records"
        " encrypted on disk.",
        steps=("describe all settings of a topic",),
        parts=r"^encryption\.enable=.*$",
    ),
    Difference(_TELEMETRY, methods=("clientInstanceId",)),
    Difference(_TELEMETRY, steps=("api versions",), parts=r"^\w+Telemetry\w*\(\d+\): .*$"),
    Difference(
        _VOTERS,
        methods=("addRaftVoter", "removeRaftVoter"),
        steps=("remove a controller that is not",),
    ),
    Difference(
        "The directory ids of voters are known even if `controller.quorum.voters` names them.",
        steps=("quorum replication", "quorum replication at a controller"),
        parts=r"^1 \S+ ",
    ),
    Difference(
        "Levels of `metadata.version` below 17 (3.7-IV2) are not supported: brokers register with"
        " their directories.",
        methods=("describeFeatures",),
        steps=(*_FEATURES, "show a broker of metadata"),
        parts=r"^(?:Feature: |supported )metadata\.version.*$|metadata\.version: \d+-\d+, ",
    ),
    Difference(
        "`node.id` and the rates of throttles have defaults, which are described as such; in Kafka"
        " they have none.",
        methods=("describeConfigs",),
        steps=("throttles are set",),
        parts=r"^node\.id=.*$|, DEFAULT_CONFIG:\w+\.replication\.throttled\.rate=\d+",
    ),
    Difference(
        "Controllers do not register: `controller.quorum.voters` or records of voters name them.",
        steps=("dump metadata", "dump a snapshot of the metadata"),
        parts=r'^"type":"REGISTER_CONTROLLER_RECORD".*$',
    ),
    Difference(
        "The leader of an idle quorum writes nothing; Kafka's writes records without content.",
        steps=("dump metadata",),
        parts=r'^"type":"NO_OP_RECORD".*$',
    ),
    Difference(
        "The first records of a cluster are one batch; Kafka writes them as a transaction.",
        steps=("dump metadata",),
        parts=r'^"type":"(?:BEGIN|END)_TRANSACTION_RECORD".*$',
    ),
    Difference(
        "Changes of a broker's registration are written at version 3; Kafka writes some at 0.",
        steps=("dump metadata",),
        parts=r'^"type":"BROKER_REGISTRATION_CHANGE_RECORD","version":0$',
    ),
    Difference(
        "Brokers know themselves in which directories their replicas are, so no record says it.",
        steps=("dump metadata", "show a partition of metadata"),
        parts=r'^"type":"PARTITION_CHANGE_RECORD".*$|directories=\[\w+\]',
    ),
    Difference(
        "A new group gets its first record when it has members, and a host is written without the"
        " slash that Java puts before it.",
        steps=("dump offsets",),
        parts=r'^.*"protocolType":"","generation":0.*$|"clientHost":"/?',
    ),
    Difference(
        "A transaction's record has the previous producer id only if that is another.",
        steps=("dump transactions",),
        parts=r'"previousProducerId":NUMBER,',
    ),
    Difference(
        "Nodes announce by a feature of headrace's own whether they read records of security.",
        steps=("show a broker of metadata",),
        parts=r"headrace\.records: \d+-\d+, ",
    ),
    Difference(
        "Only full directories are cordoned, so records of brokers have no list of them otherwise.",
        steps=("show a broker of metadata",),
        parts=r"cordonedDirectories=[^)]*",
    ),
)


def of_method(name: str) -> tuple[Difference, ...]:
    """The differences of a method of Admin."""
    return tuple(each for each in DIFFERENCES if name in each.methods)


def of_step(title: str) -> tuple[Difference, ...]:
    """The differences of a step with a command."""
    return tuple(each for each in DIFFERENCES if title in each.steps)


def differing(difference: Difference, answer: str) -> list[str]:
    """The parts of an answer that a difference is about."""
    return [match[0] for match in re.finditer(difference.parts, answer, re.MULTILINE)]


def without(differences: tuple[Difference, ...], answer: str) -> list[str]:
    """The lines of an answer without the parts that differences are about."""
    for difference in differences:
        answer = re.sub(difference.parts, "", answer, flags=re.MULTILINE)
    return [line for line in answer.splitlines() if line]
