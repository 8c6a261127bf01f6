"""The supervisor of `headrace up --brokers N`, over small programs instead of brokers."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cli import supervisor
from headrace.cli.supervisor import ASSIGNED, LocalBroker, plan, supervise
from headrace.config import broker_config
from headrace.net.addresses import Address
from headrace.testing.time_limits import scaled
from tests.unit.cli.invoking import invoke

READY = "print('headrace 1.0 ready on here, data in there', flush=True)"
UNTIL_TOLD = "import signal; signal.sigwait([signal.SIGTERM])"
# Told before it says that it is ready, a program would not wait for it any more.
BLOCKED = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"


def addresses(count: int, host: str = "127.0.0.1") -> list[Address]:
    return [Address(host, 9092 + number) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "voters", "replicas", "in_sync"),
    [(2, 1, 2, 1), (3, 3, 3, 2), (4, 3, 3, 2), (5, 5, 3, 2), (9, 5, 3, 2)],
)
def test_an_odd_number_of_brokers_votes(
    count: int, voters: int, replicas: int, in_sync: int
) -> None:
    configs = [broker_config(entry.properties) for entry in plan(addresses(count), "d", "host", {})]
    assert [config.node_id for config in configs] == list(range(1, count + 1))
    assert [config.is_controller for config in configs] == [True] * voters + [False] * (
        count - voters
    )
    assert all(config.is_broker for config in configs)
    for config in configs:
        assert len(config.controller_quorum_voters) == voters
        assert config.default_replication_factor == replicas
        assert config.offsets_topic_replication_factor == replicas
        assert config.min_insync_replicas == in_sync
        assert config.broker_rack == "host"
        assert config.data_directories == (f"d/broker-{config.node_id}",)


def test_voters_are_where_the_brokers_listen() -> None:
    [first, _, third] = plan(addresses(3), "d", "host", {})
    assert first.properties["controller.quorum.voters"] == (
        "1@127.0.0.1:9092,2@127.0.0.1:9093,3@127.0.0.1:9094"
    )
    assert third.properties["listeners"] == "PLAINTEXT://127.0.0.1:9094"
    assert str(third.address) == "127.0.0.1:9094"


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_who_listens_everywhere_is_reached_by_the_host_name(host: str) -> None:
    [_, second, _] = plan(addresses(3, host), "d", "host", {})
    config = broker_config(second.properties)
    assert (config.listeners[0].host, str(second.address)) == (host, "host:9093")
    assert {
        controller_quorum_voter.host for controller_quorum_voter in config.controller_quorum_voters
    } == {"host"}


def test_given_settings_win_over_those_of_a_cluster() -> None:
    [one, *_] = plan(addresses(3), "d", "host", {"min.insync.replicas": "1", "broker.rack": "r"})
    assert (one.properties["min.insync.replicas"], one.properties["broker.rack"]) == ("1", "r")


@pytest.mark.parametrize("name", ASSIGNED)
def test_what_the_cluster_assigns_cannot_be_set(name: str) -> None:
    result = invoke("up", "--brokers", "3", "--set", f"{name}=1")
    assert result.exit_code == 2
    assert f"--set {name}=... is not for a cluster" in result.stderr


def test_the_directory_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    result = invoke("up", "--brokers", "3", "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "has the data of a single broker" in result.stderr


def test_wrong_settings_are_refused_before_a_broker_starts() -> None:
    result = invoke("up", "--brokers", "3", "--set", "num.partitions=0")
    assert (result.exit_code, "num.partitions cannot be '0'" in result.stderr) == (2, True)


@contextmanager
def programs(monkeypatch: pytest.MonkeyPatch, *sources: str) -> Iterator[list[LocalBroker]]:
    """Members that run these programs instead of brokers."""
    members = [
        LocalBroker(f"broker-{number}", Address("h", number), {"source": source})
        for number, source in enumerate(sources, 1)
    ]
    command = property(lambda self: [sys.executable, "-c", self.properties["source"]])
    monkeypatch.setattr(LocalBroker, "command", command)
    monkeypatch.setattr(supervisor, "_BACKOFF_S", (0.01,))
    yield members


async def stop_when(told: pytest.CaptureFixture[str], text: str) -> str:
    """Ask ourselves to stop once a text was printed; all that was printed until then."""
    said = ""
    while text not in said:
        await asyncio.sleep(0.01)
        said += "".join(told.readouterr())
    os.kill(os.getpid(), signal.SIGTERM)
    return said


def test_one_line_says_that_all_are_ready(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one = f"{BLOCKED}; {READY}; {UNTIL_TOLD}; print('bye')"

    async def scenario(members: list[LocalBroker]) -> tuple[int, str]:
        status, said = await asyncio.gather(supervise(members, "dir"), stop_when(capfd, "ready"))
        return status, said

    with programs(monkeypatch, one, one, one) as members:
        status, said = asyncio.run(asyncio.wait_for(scenario(members), scaled(30)))
    assert status == 0
    assert said.endswith(" ready on h:1, h:2, h:3, data in dir\n")
    # The last one goes first.
    assert capfd.readouterr().err == "broker-3 | bye\nbroker-2 | bye\nbroker-1 | bye\n"


def test_one_that_dies_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    steady = f"{BLOCKED}; {READY}; {UNTIL_TOLD}"
    mortal = (
        f"{BLOCKED}; import os, pathlib; path = pathlib.Path({str(tmp_path / 'was')!r})\n"
        f"if path.exists(): print('again', flush=True); {UNTIL_TOLD}\n"
        f"else: path.touch(); {READY}; os.abort()"
    )

    async def scenario(members: list[LocalBroker]) -> tuple[int, str]:
        status, said = await asyncio.gather(
            supervise(members, "dir"), stop_when(capfd, "| again\n")
        )
        return status, said

    with programs(monkeypatch, steady, mortal) as members:
        status, said = asyncio.run(asyncio.wait_for(scenario(members), scaled(30)))
    assert status == 0
    assert said.index("broker-2 ended by SIGABRT; starts again in 0.01 s\n") < said.index(
        "broker-2 | again\n"
    )


def test_one_that_never_is_ready_ends_the_cluster(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    steady = f"{BLOCKED}; {READY}; {UNTIL_TOLD}"
    with programs(monkeypatch, steady, "import sys; sys.exit('no port')") as members:
        assert asyncio.run(asyncio.wait_for(supervise(members, "dir"), scaled(30))) == 1
    said = capfd.readouterr()
    assert said.err == "broker-2 | no port\nbroker-2 ended with status 1 before it was ready\n"
    assert said.out == ""


def test_a_line_without_end_is_passed_on_in_parts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with programs(monkeypatch, "print('x' * 200_000); print('y', end='')") as members:
        assert asyncio.run(asyncio.wait_for(supervise(members, "dir"), scaled(30))) == 1
    lines = capfd.readouterr().err.splitlines()
    assert [len(line) for line in lines[:1]] == [200_000 + len("broker-1 | ")]
    assert lines[1].startswith("broker-1 | y")
