"""A broker that cannot start lets go of everything, and says why."""

import asyncio
import socket
from pathlib import Path

import pytest

from headrace.broker.app import BrokerServer, StartError
from headrace.config import broker_config, read_properties
from headrace.testing.ports import hold_port
from tests.unit.config.test_kafka_settings import COMMON, SERVER


def make_broker(directory: Path, port: int) -> BrokerServer:
    properties = {
        "log.dirs": str(directory / "data"),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    return BrokerServer(broker_config(properties))


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


def test_the_properties_file_that_comes_with_kafka_starts_a_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port, controller_port = hold_port(), hold_port()
    text = SERVER.replace("kraft-combined-logs", str(tmp_path / "data")) + COMMON
    text = text.replace(":9092", f":{port.number}").replace(":9093", f":{controller_port.number}")

    async def run() -> None:
        broker = BrokerServer(broker_config(read_properties(text)))
        await broker.start()
        assert broker.node.store.is_active
        await broker.stop()

    asyncio.run(run())
    [warning] = [
        record.getMessage() for record in caplog.records if "no effect here" in record.getMessage()
    ]
    assert "num.network.threads, num.io.threads, socket.send.buffer.bytes" in warning
