from pathlib import Path

import pytest

from headrace.config import BrokerConfig
from headrace.errors import ConfigError
from tests.unit.cli.invoking import invoke


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[BrokerConfig]:
    """The configs brokers were started with."""
    configs: list[BrokerConfig] = []

    def run(config: BrokerConfig, log_level: int, hint: str = "", console: str = "") -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr("headrace.broker.app.run", run)
    return configs


def test_up_listens_on_loopback_and_keeps_data_here(started: list[BrokerConfig]) -> None:
    assert invoke("up").exit_code == 0
    (config,) = started
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.data_directories == ("headrace-data",)


def test_up_takes_addresses_directories_and_settings(started: list[BrokerConfig]) -> None:
    arguments = ["--data-dir", "/d", "--listen", "[::1]:0", "--set", "num.partitions=4"]
    assert invoke("up", *arguments, "--set", "log.retention.hours=1").exit_code == 0
    (config,) = started
    assert [(listener.host, listener.port) for listener in config.listeners] == [("::1", 0)]
    assert config.data_directories == ("/d",)
    assert (config.num_partitions, config.log_retention_hours) == (4, 1)


def test_settings_win_over_the_defaults_of_options(started: list[BrokerConfig]) -> None:
    settings = ["--set", "log.dir=/x", "--set", "listeners=PLAINTEXT://h:1"]
    assert invoke("up", *settings).exit_code == 0
    (config,) = started
    assert config.data_directories == ("/x",)
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://h:1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "lisners=x"], "unknown setting 'lisners'; did you mean listeners?"),
        (["--set", "num.partitions=0"], "num.partitions cannot be '0'"),
        (["--set", "x"], "'x' is not of the form KEY=VALUE"),
        (["--set", "node.id=1", "--set", "node.id=2"], "--set gives node.id twice"),
        (["--set", "sasl.jaas.config=x"], "sasl.jaas.config is a secret"),
        (["--set", "listener.name.a.ssl.key.password=x"], "see the arguments of commands; put it"),
        (["--listen", "9092"], "--listen '9092' is not of the form HOST:PORT"),
        (["--listen", "h:99999"], "port 99999 is above 65535"),
        (["--data-dir", "a,b"], "'a,b' has a comma"),
        (["--data-dir", "a", "--set", "log.dirs=b"], "--data-dir and --set log.dirs=... say"),
    ],
)
def test_wrong_settings_are_refused_before_the_broker_starts(
    started: list[BrokerConfig], arguments: list[str], text: str
) -> None:
    result = invoke("up", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert started == []


def test_a_broker_takes_its_settings_from_a_file(
    started: list[BrokerConfig], tmp_path: Path
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# mine\nnode.id=7\nlog.dirs=/a,/b\n")
    assert invoke("broker", "--config", str(path), "--set", "node.id=8").exit_code == 0
    (config,) = started
    assert (config.node_id, config.data_directories) == (8, ("/a", "/b"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"node.id=1\nnode.idd=2\n", "line 2: unknown setting 'node.idd'; did you mean node.id?"),
        (b"node.id=x\n", "line 1: node.id cannot be 'x'"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(
    started: list[BrokerConfig], tmp_path: Path, content: bytes, text: str
) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(content)
    result = invoke("broker", "--config", str(path))
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert text in result.stderr
    assert started == []


def test_a_missing_file_is_refused(started: list[BrokerConfig]) -> None:
    result = invoke("broker", "--config", "/nowhere/server.properties")
    assert result.exit_code == 2
    assert "/nowhere/server.properties" in result.stderr


def test_what_the_broker_refuses_is_a_wrong_setting_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: BrokerConfig, log_level: int, hint: str = "", console: str = "") -> int:
        raise ConfigError("node.id is 1, but this directory belongs to node 2")

    monkeypatch.setattr("headrace.broker.app.run", run)
    result = invoke("up")
    assert (result.exit_code, result.stderr) == (
        2,
        "headrace: node.id is 1, but this directory belongs to node 2\n",
    )
