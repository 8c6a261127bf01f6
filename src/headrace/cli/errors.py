"""Error messages: the problem, then advice."""

from collections.abc import Iterable

import click

from headrace.cli.terminal_text import printable
from headrace.errors import ErrorCode, HeadraceError, KafkaError, code_words

_NEXT_STEPS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "list topics with `headrace topics list`,"
    " create one with `headrace topics create NAME`",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted or created anew; run the command again",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or pass --if-not-exists",
    ErrorCode.INVALID_PARTITIONS: "partitions can only be added, so give a larger number",
    ErrorCode.INVALID_REPLICATION_FACTOR: "use at most as many replicas as there are brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "list brokers with `headrace brokers list`",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "its first replica is down or behind; see"
    " `headrace topics describe`",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "start a broker that has it in sync; see"
    " `headrace topics describe`",
    ErrorCode.INVALID_CONFIG: "see the settings with `headrace configs describe --all`",
    ErrorCode.TOPIC_DELETION_DISABLED: "set delete.topic.enable=true on the broker",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller messages or batches (--batch-size), or raise the"
    " topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "use a smaller --batch-size",
    ErrorCode.INVALID_TIMESTAMP: "send a timestamp within the topic's"
    " message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    ErrorCode.NOT_ENOUGH_REPLICAS: "wait for replicas to come back, or lower min.insync.replicas",
    ErrorCode.OFFSET_OUT_OF_RANGE: "see the offsets there are with `headrace topics describe`",
    ErrorCode.KAFKA_STORAGE_ERROR: "see the broker's log: one of its disks does not work",
    ErrorCode.CORRUPT_MESSAGE: "see the broker's log, and check its files with"
    " `headrace log dump --verify`",
    ErrorCode.UNSUPPORTED_VERSION: "use a broker that has this API",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask for the right to use this topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ask for the right to change the cluster",
    ErrorCode.GROUP_ID_NOT_FOUND: "list groups with `headrace groups list`",
    ErrorCode.INVALID_GROUP_ID: "list groups with `headrace groups list`",
    ErrorCode.NON_EMPTY_GROUP: "stop its consumers first; `headrace groups describe GROUP"
    " --members` shows them",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members again, so stop its consumers first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the consumers that subscribe to the topic first",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "ask for the right to use this group",
}


def explain(error: HeadraceError) -> str:
    """An error as one line: the problem; the advice."""
    if not isinstance(error, KafkaError):
        return one_line(str(error))
    what = one_line(error.what or code_words(error.code))
    advice = one_line(error.advice) or _NEXT_STEPS.get(error.code)
    return f"{what}; {advice}" if advice else f"{what} ({error.code.name})"


def report(failures: Iterable[KafkaError]) -> int:
    """Print one line for each failure; returns the exit status."""
    status = 0
    for error in failures:
        click.echo(f"headrace: {explain(error)}", err=True)
        status = 1
    return status


def one_line(text: str) -> str:
    """The text without line breaks and without the full stop that would stand before a `;`."""
    return printable(" ".join(text.split())).rstrip(".")
