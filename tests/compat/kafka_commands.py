"""Kafka's own commands, run against a broker: how each ends, and what it prints."""

import re
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from headrace.testing.time_limits import scaled
from tests.compat.java_admin import without_varying
from tools.kafka_broker import java_command

_TRIES = 10

# What Java's logging prints beside the output of a command.
_LOGGED = re.compile(
    r"^(WARNING: |SLF4J|ERROR StatusLogger|\d{4}-\d\d-\d\d[T ]|\[\d{4}-|\s+at |.*deprecat)"
)

# What differs in the output of commands beside that; messages are headrace's own.
_VARYING = (
    (re.compile(r"^(Cluster ?I[Dd]: ).*"), r"\1ID"),
    (re.compile(r"\bEpoch: \d+$"), "Epoch: NUMBER"),
    (re.compile(r"\bcrc: \d+"), "crc: NUMBER"),
    (re.compile(r"\b(epoch|partitionEpoch)=\d+"), r"\1=NUMBER"),
    (
        re.compile(r"^(.*Exception: |Error[\w ]*: |(?:Could|Can) not \w+ \S+ to \d+\.).*"),
        r"\1TEXT",
    ),
    # Lines of tables: endpoints, the quorum, transactions, producers.
    (re.compile(r"^(1 127\.0\.0\.1) \d+ "), r"\1 PORT "),
    (re.compile(r"^(1 \S{22}|1 ID) \d+ "), r"\1 OFFSET "),
    (re.compile(r"^(a-[\w-]+ 1 )\d+ "), r"\1NUMBER "),
    (re.compile(r"^(1 a-[\w-]+ )\d+( .* TIME )\d+"), r"\1NUMBER\2DURATION"),
    (re.compile(r"^\d+ (\d+ -?\d+ -?\d+ TIME )"), r"NUMBER \1"),
)

CLASSES = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "reassign": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "acls": "org.apache.kafka.tools.AclCommand",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "storage": "kafka.tools.StorageTool",
}


class Step(NamedTuple):
    """A command by its short name, with arguments in which {words} stand for the broker's own.

    `kept` is a pattern of the lines that are compared, or of their part that is: its first group.
    With `ordered` they are compared in their order. With `once` each counts once. `until` is a
    pattern that is in a complete output: Kafka's metadata shell may print before it has read all.
    """

    title: str
    command: str
    arguments: str
    stdin: str = ""
    kept: str = ""
    ordered: bool = False
    once: bool = False
    until: str = ""


def run_step(step: Step, words: Mapping[str, str]) -> str:
    """The exit status of a command and its output, without what is another in every broker."""
    return shown_end(step, run_command(step, words))


def run_command(step: Step, words: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """The end of the command of a step, repeated while its output is not complete."""
    command = [each.format_map(words) for each in step.arguments.split()]
    for _ in range(_TRIES):
        done = subprocess.run(
            java_command(CLASSES[step.command], *command),
            input=step.stdin,
            capture_output=True,
            text=True,
            timeout=scaled(90),
            check=False,
        )
        if re.search(step.until, done.stdout):
            break
    return done


def shown_end(step: Step, done: "subprocess.CompletedProcess[str]") -> str:
    """The end of a step's command as `run_step` has it."""
    lines = [
        _without_varying(line)
        for line in (done.stdout + done.stderr).splitlines()
        if line.strip() and not _LOGGED.match(line)
    ]
    return "\n".join([f"exit {done.returncode}", *_compared(step, lines)])


def _without_varying(line: str) -> str:
    line = " ".join(without_varying(line).split())
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line


def _compared(step: Step, lines: list[str]) -> list[str]:
    """The lines of a step's output that are compared."""
    if step.kept:
        found = [match for line in lines if (match := re.search(step.kept, line))]
        lines = [match[1] if match.re.groups else match.string for match in found]
    if step.once:
        lines = list(dict.fromkeys(lines))
    return lines if step.ordered else sorted(lines)
