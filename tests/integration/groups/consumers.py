"""Groups of consumer processes, seen from the test: start, kill, and what they must agree on."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import psutil

from headrace.errors import ErrorCode
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from headrace.protocol.schema import RESPONSE_ELEMENTS_MAX, schema_of
from headrace.testing.time_limits import Deadline
from tests.fork_server import MEMBER, Streams, server_of
from tests.integration.groups.member import Options
from tests.integration.wire import Wire

SECONDS = 60.0
EXIT_SECONDS = 20.0

SESSION_MS = 3000
HEARTBEAT_MS = 300
POLL_INTERVAL_MS = 4000
METADATA_MS = 60_000
# Settings of a broker under which groups whose coordinator assigns have these times, too.
ASSIGNED_SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
}

Partition: TypeAlias = tuple[str, int]


def wait_for(problem: Callable[[], str | None], seconds: float = SECONDS) -> None:
    """Wait until there is no problem any more; fail with the last one."""
    deadline = Deadline(seconds)
    while (said := problem()) is not None:
        assert not deadline.has_passed, said
        time.sleep(0.03)


class Report(NamedTuple):
    kind: str
    time: float
    details: Any


class Member:
    """A consumer process and everything it has said."""

    def __init__(self, options: Options) -> None:
        self.name = options.name
        self.reports: list[Report] = []
        self._received: set[tuple[str, int, int]] = set()
        # When it stopped working without saying so.
        self.killed_at: float | None = None
        streams = Streams(subprocess.PIPE, subprocess.PIPE, None)
        arguments = [json.dumps(options._asdict())]
        self._process = server_of(MEMBER, os.environ).start(arguments, os.environ, streams)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def owned(self) -> frozenset[Partition]:
        """The partitions it holds, by its own account."""
        owned: set[Partition] = set()
        for report in self.reports:
            if report.kind == "assigned":
                owned |= partitions_of(report)
            elif report.kind == "revoked":
                owned -= partitions_of(report)
        return frozenset(owned)

    @property
    def received(self) -> set[tuple[str, int, int]]:
        """Topic, partition and offset of every record it was given."""
        return self._received.copy()

    def said(self, kind: str) -> Report | None:
        """The last report of a kind."""
        return next((report for report in reversed(self.reports) if report.kind == kind), None)

    def pause(self) -> None:
        """Stop polling, and return once it has stopped."""
        before = sum(report.kind == "paused" for report in self.reports)
        self._tell("pause")
        wait_for(
            lambda: (
                f"{self.name} goes on polling"
                if sum(report.kind == "paused" for report in self.reports) == before
                else None
            )
        )

    def resume(self) -> None:
        self._tell("resume")

    def freeze(self) -> None:
        """Stop the whole process, heartbeats and all, as a machine that hangs would."""
        self._process.send_signal(signal.SIGSTOP)
        process = psutil.Process(self._process.pid)
        wait_for(lambda: None if process.status() == psutil.STATUS_STOPPED else "it still runs")
        self.reports.append(Report("paused", time.monotonic(), None))

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def start_closing(self) -> None:
        self._tell("close")

    def wait_closed(self) -> None:
        """Wait for the process to leave the group and end by itself."""
        assert self._process.wait(EXIT_SECONDS) == 0
        self._reader.join()
        assert self.said("closed") is not None

    def close(self) -> None:
        self.start_closing()
        self.wait_closed()

    def kill(self) -> None:
        """End the process with no chance to say goodbye, if it still runs."""
        if self._process.poll() is None:
            self.killed_at = time.monotonic()
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A killed process may leave half a line.
            if line.endswith(b"\n"):
                self._keep(Report(*json.loads(line)))

    def _keep(self, report: Report) -> None:
        if report.kind == "records":
            for topic, partition, offsets in report.details:
                self._received.update((topic, partition, offset) for offset in offsets)
        self.reports.append(report)


class Group:
    """The consumers of one group, alive or not."""

    def __init__(self, address: str, name: str, client: str, **options: Any) -> None:
        self.address = address
        self.name = name
        self.everybody: list[Member] = []
        self.members: list[Member] = []
        self.paused: list[Member] = []
        self._options = Options(
            **{
                "client": client,
                "address": address,
                "group": name,
                "name": "",
                "topics": [],
                "strategy": "range",
                "session_ms": SESSION_MS,
                "heartbeat_ms": HEARTBEAT_MS,
                "poll_interval_ms": POLL_INTERVAL_MS,
                "metadata_ms": METADATA_MS,
                "instance": None,
                "reset": "earliest",
                "pattern": None,
                **options,
            }
        )

    @property
    def strategy(self) -> str:
        return self._options.strategy

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep reading what stays theirs when the group changes."""
        return self.strategy == "cooperative-sticky" or "assigned" in self._options.client

    def start(self, count: int = 1, **options: Any) -> list[Member]:
        started = []
        for _ in range(count):
            name = f"{self.name}-member-{len(self.everybody) + 1}"
            member = Member(self._options._replace(name=name, **options))
            self.everybody.append(member)
            started.append(member)
        self.members += started
        return started

    def close(self, members: Sequence[Member]) -> None:
        """Let members leave, all at once."""
        for member in members:
            member.start_closing()
        for member in members:
            member.wait_closed()
            self.members.remove(member)

    def kill(self, member: Member) -> None:
        member.kill()
        self.members.remove(member)

    def pause(self, member: Member) -> None:
        """Have a member stop polling, for longer than it may."""
        member.pause()
        self.members.remove(member)
        self.paused.append(member)

    def resume(self, member: Member) -> None:
        self.paused.remove(member)
        self.members.append(member)
        member.resume()

    def freeze(self, member: Member) -> None:
        member.freeze()
        self.members.remove(member)
        self.paused.append(member)

    def thaw(self, member: Member) -> None:
        self.paused.remove(member)
        self.members.append(member)
        member.thaw()

    def end(self) -> None:
        for member in self.everybody:
            member.kill()

    @property
    def received(self) -> set[tuple[str, int, int]]:
        return set().union(*(member.received for member in self.everybody))

    @property
    def assignment(self) -> dict[Member, frozenset[Partition]]:
        return {member: member.owned for member in self.members}

    def unsettled(self, partitions: Iterable[Partition]) -> str | None:
        """Why the group is not yet one where every partition has one owner, or None if it is.

        The owners have to be the members that are thought to be there, and the coordinator has to
        see it as they do.
        """
        owners: dict[Partition, list[str]] = {partition: [] for partition in partitions}
        for member in self.members:
            assert member.is_running, f"{member.name} has ended: {member.reports[-1:]}"
            for partition in member.owned:
                owners.setdefault(partition, []).append(member.name)
        wrong = {owner: names for owner, names in owners.items() if len(names) != 1}
        if wrong:
            return f"{self.name}: {wrong} do not have one owner"
        state, kept = state_of(self.address, self.name)
        if state != "Stable":
            return f"{self.name} is {state}"
        told = {member.name: member.owned for member in self.members}
        return None if kept == told else f"{self.name}: coordinator {kept}, consumers {told}"


@contextmanager
def closing(groups: Sequence[Group]) -> Iterator[None]:
    """No process outlives the test."""
    try:
        yield
    finally:
        for group in groups:
            group.end()


def wait_settled(groups: Sequence[Group], partitions: Sequence[Partition]) -> None:
    """Wait until each group's partitions have one owner each."""
    for group in groups:
        wait_for(partial(group.unsettled, partitions))


def partitions_of(report: Report) -> set[Partition]:
    return {(topic, partition) for topic, partition in report.details}


def state_of(address: str, group: str) -> tuple[str, dict[str, frozenset[Partition]]]:
    """The state of a group of any type, and what its members work on, by their client ids."""
    with Wire(address) as wire:
        [found] = wire.ask(ConsumerGroupDescribeRequest(group_ids=[group])).groups
    if found.error_code:
        described = describe(address, group)
        return described.group_state, assignments(described)
    return found.group_state, {
        member.client_id: frozenset(
            (topic.topic_name, partition)
            for topic in member.assignment.topic_partitions
            for partition in topic.partitions
        )
        for member in found.members
    }


def describe(address: str, group: str) -> DescribedGroup:
    with Wire(address) as wire:
        [described] = wire.ask(DescribeGroupsRequest(groups=[group])).groups
    assert isinstance(described, DescribedGroup)
    assert described.error_code in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}, described
    return described


def assignments(described: DescribedGroup) -> dict[str, frozenset[Partition]]:
    """What the members of a group work on, by their client ids."""
    return {
        member.client_id: read_assignment(member.member_assignment) for member in described.members
    }


def read_assignment(data: bytes) -> frozenset[Partition]:
    """The partitions in what a leader wrote; later versions only add fields to version 0."""
    if not data:
        return frozenset()
    schema = schema_of(ConsumerProtocolAssignment, 0)
    assignment, _ = decode(schema, data, 2, RESPONSE_ELEMENTS_MAX)
    assert isinstance(assignment, ConsumerProtocolAssignment)
    return frozenset(
        (assigned_partition.topic, partition)
        for assigned_partition in assignment.assigned_partitions
        for partition in assigned_partition.partitions
    )
