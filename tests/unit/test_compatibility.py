"""docs/compatibility.md: its tables are current, and every gap has its reason."""

import pytest

from headrace.broker.apis import served_at
from headrace.config import broker_config
from tools import make_api_table
from tools.make_api_table import GAPS, LIMITS, gaps, kafka_apis, served_versions

TWO_LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
}


def test_the_table_of_apis_is_what_the_code_says() -> None:
    page = make_api_table.PAGE.read_text()
    assert make_api_table.with_table(page) == page, "run tools/make_api_table.py"


def test_every_gap_has_its_reason_and_no_reason_has_outlived_its_gap() -> None:
    assert set(GAPS) == gaps()
    assert set(LIMITS) <= {api.name for api in kafka_apis()} - gaps()
    assert all(text.endswith(".") and " " in text for text in (*GAPS.values(), *LIMITS.values()))


def test_nothing_is_served_that_kafka_does_not_have() -> None:
    known = {api.key: api.versions for api in kafka_apis()}
    for key, (first, last) in served_versions().items():
        assert known[key][0] <= first <= last <= known[key][1], key


def test_apis_are_served_at_the_listeners_that_kafka_serves_them_at() -> None:
    config = broker_config(TWO_LISTENERS)
    served = {
        "broker": {row.api for row in served_at(config, "PLAINTEXT")},
        "controller": {row.api for row in served_at(config, "CONTROLLER")},
    }
    for api in kafka_apis():
        if api.key in served_versions():
            ours = tuple(name for name, keys in served.items() if api.key in keys)
            assert ours == api.listeners, api.name


def test_only_the_region_of_the_table_is_renewed() -> None:
    page = f"before\n{make_api_table.BEGIN}old\n{make_api_table.END}after\n"
    renewed = make_api_table.with_table(page)
    assert renewed.startswith("before\n") and renewed.endswith("after\n")
    assert "old" not in renewed and "| 0 | Produce |" in renewed
    assert make_api_table.with_table(renewed) == renewed
    with pytest.raises(ValueError, match="apis:end"):
        make_api_table.with_table("no marks")
