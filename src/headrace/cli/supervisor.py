"""Supervisor of several brokers on one machine as a cluster: start, restart, ordered stop.

Rule: a broker that was never ready ends the cluster, because its problem will not pass; one that
ends later is started again.
"""

import asyncio
import json
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headrace import __version__
from headrace.config.listeners import ANY_ADDRESS
from headrace.net.addresses import Address

# A cluster works while a majority of its voters does; an even number tolerates no more failures.
VOTERS_MAX = 5
REPLICAS_MAX = 3

# Makes a broker of the cluster log at INFO, not only warnings.
VERBOSE = "--verbose"

_LINE_BYTES_MAX = 65_536
_STOP_S_MAX = 30.0
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)
# A broker that has lived for so long is restarted without the backoff of earlier ends.
_STEADY_S = 30.0
_READY = re.compile(rb"headrace \S+ ready on ")


ASSIGNED = (
    "node.id",
    "process.roles",
    "listeners",
    "advertised.listeners",
    "controller.quorum.voters",
    "log.dirs",
    "log.dir",
)
"""Settings that are the cluster's to give, most of them another value to each broker."""


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """One broker of the cluster: its name in the output, its address and its settings."""

    name: str
    address: Address
    properties: Mapping[str, str] = field(repr=False)
    verbose: bool = False

    @property
    def admin_listener(self) -> str:
        """The URL of its admin listener; empty if it has none."""
        return self.properties.get("admin.listener", "")

    @property
    def command(self) -> list[str]:
        """The command that starts it."""
        program = [sys.executable, "-P", "-m", "headrace.cli.broker_process"]
        return [*program, VERBOSE] if self.verbose else program

    @property
    def standard_input(self) -> bytes:
        """The settings, as the command reads them."""
        return json.dumps(dict(self.properties)).encode()


def voter_count(brokers: int) -> int:
    """The number of controllers for a number of brokers: an odd number."""
    most = min(brokers, VOTERS_MAX)
    return most - 1 + most % 2


def cluster_defaults(brokers: int) -> dict[str, str]:
    """Settings with which any one of at least three brokers may be lost."""
    replicas = min(brokers, REPLICAS_MAX)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(replicas - 1, 1)),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
    }


def plan(
    listen: Sequence[Address],
    data_dir: str,
    hostname: str,
    common: Mapping[str, str],
    own: Sequence[Mapping[str, str]] = (),
    *,
    protocol: str = "PLAINTEXT",
    verbose: bool = False,
) -> tuple[LocalBroker, ...]:
    """The brokers of a cluster, one for each address; `common` settings override the defaults.

    `own` has more settings for each of them.
    """
    voting = voter_count(len(listen))
    reached = [
        address._replace(host=hostname) if address.host in ANY_ADDRESS else address
        for address in listen
    ]
    shared = {
        "broker.rack": hostname,
        **cluster_defaults(len(listen)),
        **common,
        "controller.quorum.voters": ",".join(
            f"{number}@{place}" for number, place in enumerate(reached[:voting], 1)
        ),
    }
    return tuple(
        LocalBroker(
            name=f"broker-{number}",
            address=place,
            properties={
                **shared,
                **(own[number - 1] if own else {}),
                "node.id": str(number),
                "process.roles": "broker,controller" if number <= voting else "broker",
                "listeners": f"{protocol}://{bound}",
                "advertised.listeners": f"{protocol}://{place}",
                "log.dirs": f"{data_dir}/broker-{number}",
            },
            verbose=verbose,
        )
        for number, (bound, place) in enumerate(zip(listen, reached, strict=True), 1)
    )


class SupervisedProcess:
    """One broker process and its successors."""

    def __init__(self, member: LocalBroker, on_ready: Callable[[], None]) -> None:
        self._member = member
        self._on_ready = on_ready
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self.is_ready = False
        """Whether it was ready once."""

    async def run(self) -> None:
        """Run the broker, with restarts, until it is stopped or ends without having been ready."""
        failures = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            status = await self._live()
            if self._stopping.is_set():
                return
            if not self.is_ready:
                self._print_line(f"ended {exit_text(status)} before it was ready")
                return
            failures = 0 if time.monotonic() - begun > _STEADY_S else failures
            delay_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            failures += 1
            self._print_line(f"ended {exit_text(status)}; starts again in {delay_s:g} s")
            await self._sleep(delay_s)

    async def stop(self) -> None:
        """Stop the broker cleanly, or by force if that takes too long; it is not restarted."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            self._print_line(f"did not stop within {_STOP_S_MAX:g} s, and was killed")
            self.kill()
            await process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _live(self) -> int:
        """Run one process to its end; returns its exit status."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._member.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            limit=_LINE_BYTES_MAX,
            # Ctrl-C is for the supervisor, which stops the brokers in an order that keeps the
            # quorum.
            process_group=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._member.standard_input)
        with suppress(ConnectionError):  # It has ended already, and its output says why.
            await process.stdin.drain()
        process.stdin.close()
        if self._stopping.is_set():
            process.terminate()
        await self._pass_on(process.stdout)
        return await process.wait()

    async def _pass_on(self, output: asyncio.StreamReader) -> None:
        """Print the broker's output, with its name before each line."""
        begins_line = True
        while True:
            try:
                line = await output.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                line = error.partial
                if not line:
                    return
            except asyncio.LimitOverrunError as error:
                line = await output.read(error.consumed)
            if begins_line and _READY.match(line):
                self.is_ready = True
                self._on_ready()
            else:
                prefix = f"{self._member.name} | " if begins_line else ""
                sys.stderr.write(prefix + line.decode(errors="replace"))
            begins_line = line.endswith(b"\n")

    async def _sleep(self, seconds: float) -> None:
        """Wait, at most until stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _print_line(self, line: str) -> None:
        sys.stderr.write(f"{self._member.name} {line}\n")


def exit_text(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"


async def supervise(
    members: Sequence[LocalBroker], data_dir: str, hint: str = "", console: str = ""
) -> int:
    """Run the cluster until SIGINT or SIGTERM; returns the exit status.

    When it is ready a line is printed, with the URL of a console beside it, and then the hint.
    """
    stopping = asyncio.Event()
    killing = False

    def on_signal() -> None:
        nonlocal killing
        # A second signal means that the user does not want to wait.
        killing = stopping.is_set()
        stopping.set()
        if killing:
            for process in everybody:
                process.kill()

    def on_ready() -> None:
        if not told and all(process.is_ready for process in everybody):
            told.append(True)
            where = ", ".join(str(member.address) for member in members)
            admin = ", ".join(filter(None, (member.admin_listener for member in members)))
            sys.stdout.write(
                f"headrace {__version__} ready on {where}, data in {data_dir}"
                f"{', admin listeners at ' if admin else ''}{admin}"
                f"{', console at ' if console else ''}{console}\n"
            )
            sys.stdout.write(f"{hint}\n" if hint else "")
            sys.stdout.flush()

    told: list[bool] = []
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    everybody = [SupervisedProcess(member, on_ready) for member in members]
    lives = [asyncio.create_task(process.run()) for process in everybody]
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait([*lives, stopped], return_when=asyncio.FIRST_COMPLETED)
    failed = not stopping.is_set()
    stopped.cancel()
    # The last one first: the others need the voters for a clean stop.
    for process in reversed(everybody):
        await process.stop()
    await asyncio.gather(*lives)
    return 1 if failed or killing else 0


def run(members: Sequence[LocalBroker], data_dir: str, hint: str = "", console: str = "") -> int:
    """Run `supervise` on an event loop."""
    return asyncio.run(supervise(members, data_dir, hint, console))
