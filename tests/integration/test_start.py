"""A broker that cannot start lets go of everything, and says why."""

import asyncio
import socket
from pathlib import Path

import pytest

from headrace.broker.app import Broker, StartError
from headrace.config import broker_config


def make_broker(directory: Path, port: int) -> Broker:
    properties = {
        "log.dirs": str(directory / "data"),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    return Broker(broker_config(properties))


def test_a_taken_port_is_named_and_the_data_stays_free_and_clean(tmp_path: Path) -> None:
    async def run(taken: int) -> None:
        with pytest.raises(StartError, match=f"127.0.0.1:{taken}"):
            await make_broker(tmp_path, taken).start()
        marker = tmp_path / "data" / ".kafka_cleanshutdown"
        assert marker.exists()
        # The lock is free, in the same process too.
        broker = make_broker(tmp_path, 0)
        await broker.start()
        assert not marker.exists()
        await broker.stop()
        assert marker.exists()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(run(listener.getsockname()[1]))


def test_topics_without_their_metadata_log_are_not_touched(tmp_path: Path) -> None:
    lost = tmp_path / "data" / "orders-0"
    lost.mkdir(parents=True)
    (lost / "00000000000000000000.log").write_bytes(b"")
    with pytest.raises(StartError, match="no metadata log"):
        asyncio.run(make_broker(tmp_path, 0).start())
    assert lost.exists()
