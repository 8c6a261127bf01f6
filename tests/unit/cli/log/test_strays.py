"""`headrace log strays` on the data directory of a broker that is stopped, or runs."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.storage.files import Files
from headrace.storage.log_manager import LogManager
from headrace.types import TopicPartition, uuid_text
from tests.unit.cli.invoking import document, invoke
from tests.unit.storage.logs import NOW_MS, SMALL, TOPIC_ID, append

ORDERS = TopicPartition("orders", 0)
OTHER_ID = bytes(range(50, 66))

Manage = Callable[[], LogManager]


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    def start() -> LogManager:
        return LogManager.open(
            Files(),
            [str(tmp_path / "broker data")],
            node_id=1,
            cluster_id="cluster",
            config_of=lambda _: SMALL,
            now_ms=NOW_MS,
        )

    return start


@pytest.fixture
def stray(tmp_path: Path, manage: Manage) -> Path:
    """The log of orders-0, with three records, set aside by a broker that is stopped."""
    manager = manage()
    append(manager.create(ORDERS, TOPIC_ID, SMALL, NOW_MS), 3)
    path = manager.set_aside(ORDERS, "nobody knows it", NOW_MS)
    manager.close()
    return Path(path)


def test_strays_are_listed_with_their_reason(tmp_path: Path, stray: Path) -> None:
    [found] = document(invoke("log", "strays", "list", str(tmp_path / "broker data"), "--json"))
    assert found.pop("size_bytes") > 0
    assert found == {
        "path": str(stray),
        "topic": "orders",
        "partition": 0,
        "topic_id": uuid_text(TOPIC_ID),
        "time": "2023-11-14T22:13:20Z",
        "reason": "nobody knows it",
    }
    assert (
        "nobody knows it" in invoke("log", "strays", "list", str(tmp_path / "broker data")).stdout
    )
    (stray / "stray.metadata").write_bytes(b"\x00" * 100)
    [found] = document(invoke("log", "strays", "list", str(tmp_path / "broker data"), "--json"))
    assert (found["topic"], found["reason"]) == ("orders", None)


def test_a_restored_stray_is_opened_again(manage: Manage, stray: Path) -> None:
    assert invoke("log", "strays", "restore", str(stray)).exit_code == 0
    manager = manage()
    assert manager.logs[ORDERS].log_end_offset == 3
    assert manager.logs[ORDERS].topic_id == TOPIC_ID
    manager.close()


def test_a_stray_takes_the_place_of_a_log_once_the_printed_advice_is_followed(
    manage: Manage, stray: Path
) -> None:
    manager = manage()
    manager.create(ORDERS, TOPIC_ID, SMALL, NOW_MS)
    refused = invoke("log", "strays", "restore", str(stray))
    assert refused.exit_code == 1
    [advised] = re.findall(r"stop the broker and run `headrace ([^`]*)` first", refused.stderr)
    assert advised.startswith("log strays set-aside ")
    command = shlex.split(advised)
    # While the broker runs, its logs stay as they are.
    assert "stop it first" in invoke(*command).stderr
    manager.close()
    assert invoke(*command).exit_code == 0
    assert invoke("log", "strays", "restore", str(stray)).exit_code == 0
    manager = manage()
    assert manager.logs[ORDERS].log_end_offset == 3
    manager.close()


def test_a_stray_of_a_partition_with_a_log_elsewhere_keeps_the_broker_from_starting(
    tmp_path: Path, stray: Path
) -> None:
    """As the help of the command says; the broker prints what to move away."""
    paths = [str(tmp_path / name) for name in ("broker data", "other data")]

    def start() -> LogManager:
        return LogManager.open(
            Files(),
            paths,
            node_id=1,
            cluster_id="cluster",
            config_of=lambda _: SMALL,
            now_ms=NOW_MS,
        )

    manager = start()
    # The directory with fewer logs gets a new log.
    manager.create(TopicPartition("events", 0), OTHER_ID, SMALL, NOW_MS)
    append(manager.create(ORDERS, TOPIC_ID, SMALL, NOW_MS), 2)
    assert manager.directory_of(ORDERS).path == paths[1]
    manager.close()
    assert invoke("log", "strays", "restore", str(stray)).exit_code == 0
    with pytest.raises(ConfigError, match="orders-0 is in more than one data directory") as refused:
        start()
    [shorter] = re.findall(r"Move (.*) out of the data directories", str(refused.value))
    assert shorter == f"{paths[1]}/orders-0"
    Path(shorter).rename(tmp_path / "kept")
    manager = start()
    assert manager.logs[ORDERS].log_end_offset == 3
    manager.close()


def test_a_discarded_stray_is_gone(tmp_path: Path, stray: Path) -> None:
    assert invoke("log", "strays", "discard", str(stray)).exit_code == 2
    assert stray.exists()
    assert invoke("log", "strays", "discard", "--yes", str(stray)).exit_code == 0
    assert not stray.exists()
    assert "no log that was set aside" in invoke("log", "strays", "restore", str(stray)).stderr
    assert (
        "no logs were set aside"
        in invoke("log", "strays", "list", str(tmp_path / "broker data")).stdout
    )


def test_a_lost_log_can_be_given_up(tmp_path: Path, manage: Manage) -> None:
    manager = manage()
    append(manager.create(ORDERS, TOPIC_ID, SMALL, NOW_MS), 3)
    manager.close()
    data = tmp_path / "broker data"
    refused = invoke("log", "strays", "forget", str(data), "orders-0")
    assert (refused.exit_code, "not lost" in refused.stderr) == (1, True)
    (data / "orders-0").rename(tmp_path / "away")
    manager = manage()
    assert list(manager.missing) == [ORDERS]
    manager.close()
    assert invoke("log", "strays", "forget", str(data), "orders-0").exit_code == 0
    assert (
        "nothing is to be given up"
        in invoke("log", "strays", "forget", str(data), "orders-0").stderr
    )
    manager = manage()
    assert not manager.missing
    manager.close()


def test_only_data_directories_and_partitions_are_taken(tmp_path: Path, stray: Path) -> None:
    assert "log.dirs" in invoke("log", "strays", "list", str(tmp_path)).stderr
    for name in ("orders", "__cluster_metadata-0"):
        refused = invoke("log", "strays", "forget", str(stray.parent), name)
        assert refused.exit_code == 2
