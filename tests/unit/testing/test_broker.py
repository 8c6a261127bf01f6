"""What a test's broker refuses, and the names and texts it makes."""

from pathlib import Path

import pytest

import headrace.testing
from headrace.errors import ConfigError
from headrace.testing import Broker, BrokerError
from headrace.testing.broker import text_of
from headrace.testing.broker_runners import BrokerLog, environment
from headrace.testing.network import LinkConditions
from headrace.testing.plugin import topic_name


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), (5, "5"), (0.5, "0.5"), ("lz4", "lz4")]
)
def test_settings_get_kafkas_text_form(value: str | int | float | bool, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"config": {"num.partitons": 3}}, "num.partitions"),
        ({"config": {"num.partitions": "many"}}, "num.partitions"),
        ({"config": {"listeners": "PLAINTEXT://127.0.0.1:9092"}}, "port="),
        ({"config": {"advertised.listeners": "PLAINTEXT://a:1"}, "proxied": True}, "proxy"),
        ({"config": {"log.dirs": "a,b"}, "data_dir": "c"}, "data_dir"),
        ({"data_dir": "a,b"}, "comma"),
    ],
)
def test_wrong_options_are_explained_before_anything_starts(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Broker(**options)


@pytest.mark.parametrize("fault", ["kill", "pause", "resume"])
def test_faults_of_a_process_need_one(fault: str) -> None:
    with pytest.raises(BrokerError, match=rf"{fault}\(\) needs .* in_process"):
        getattr(Broker(in_process=True), fault)()


@pytest.mark.parametrize("fault", ["slow", "cut", "heal"])
def test_faults_of_the_network_need_a_proxy(fault: str) -> None:
    with pytest.raises(BrokerError, match=rf"{fault}\(\) .*proxied=True"):
        getattr(Broker(), fault)()
    with pytest.raises(BrokerError, match="started"):
        getattr(Broker(proxied=True), fault)()


@pytest.mark.parametrize("options", [{"latency_ms": -1}, {"bytes_per_s": 0}, {"bytes_per_s": -5}])
def test_impossible_speeds_are_refused(options: dict) -> None:
    [name] = options
    with pytest.raises(ValueError, match=name):
        Broker(proxied=True).slow(**options)


@pytest.mark.parametrize("fault", ["kill", "pause", "resume", "create_topic"])
def test_a_broker_that_does_not_run_says_so(fault: str) -> None:
    with pytest.raises(BrokerError, match="not running"):
        getattr(Broker(), fault)()


@pytest.mark.parametrize("name", ["port", "bootstrap_servers", "data_dir", "pid"])
def test_what_is_known_only_after_the_start_says_so(name: str) -> None:
    with pytest.raises(BrokerError, match="start"):
        getattr(Broker(), name)


def test_a_broker_shows_what_it_is() -> None:
    assert repr(Broker()) == "<Broker, not running>"
    assert repr(Broker(in_process=True)) == "<in-process Broker, not running>"
    assert Broker(data_dir="data").data_dir == Path("data")
    assert Broker(config={"log.dirs": "a,b"}).data_dir == Path("a")


def test_the_package_offers_what_it_says_and_nothing_else() -> None:
    assert set(headrace.testing.__all__) <= set(dir(headrace.testing))
    with pytest.raises(AttributeError, match="Brokr"):
        _ = headrace.testing.Brokr


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_orders", "test_orders-7"),
        ("test_orders[gzip-1.5 MB]", "test_orders-gzip-1-5-MB-7"),
        ("[é]", "topic-7"),
        ("x" * 500, "x" * 200 + "-7"),
    ],
)
def test_topics_are_named_after_their_tests(test: str, name: str) -> None:
    assert topic_name(test, 7) == name


def test_a_rate_is_kept_in_small_pieces() -> None:
    assert LinkConditions().piece_bytes == 65_536
    assert LinkConditions().seconds_of(1_000_000) == 0
    slow = LinkConditions(bytes_per_s=100_000)
    assert slow.piece_bytes == 2_000
    assert slow.seconds_of(2_000) == 0.02
    assert LinkConditions(bytes_per_s=1).piece_bytes == 1
    assert LinkConditions(bytes_per_s=1e12).piece_bytes == 65_536


def test_a_log_keeps_its_newest_lines() -> None:
    log = BrokerLog()
    for number in range(100_010):
        log.add(f"{number}\n")
    assert log.text.startswith("10\n11\n")
    assert log.tail(2) == "100008\n100009\n"
    log.clear()
    assert log.text == ""


def test_settings_of_the_developer_do_not_reach_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVER", "example:9092")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("TZ", "UTC")
    given = environment(Path("src"))
    assert not [name for name in given if name.startswith("HEADRACE_") or name == "PYTHONINSPECT"]
    assert given["TZ"] == "UTC"


def test_a_source_tree_is_found_by_the_broker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert environment(Path("src"))["PYTHONPATH"] == "src:elsewhere"
    # Before the standard library is no place for a directory with everybody's packages.
    assert environment(Path("lib/site-packages"))["PYTHONPATH"] == "elsewhere"
    monkeypatch.delenv("PYTHONPATH")
    assert environment(Path("src"))["PYTHONPATH"] == "src"
