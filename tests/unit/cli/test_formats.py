import json

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.output import (
    json_line,
    table_format,
    table_heading,
    template_format,
    timestamp_text,
    value_line,
)
from headrace.cli.produce import InputLocation, parse_json
from headrace.protocol.consumer_records import ConsumerRecord

RECORD = ConsumerRecord(
    "orders",
    3,
    42,
    1_714_564_800_123,
    key=b"key",
    value=b"value",
    headers=(("a", b"1"), ("b", None)),
)
EMPTY = ConsumerRecord("orders", 0, 0)


def test_a_value_is_printed_as_it_is() -> None:
    assert value_line(ConsumerRecord("t", 0, 0, value=b"\xff\x00")) == b"\xff\x00\n"
    assert value_line(EMPTY) == b"\n"


def test_json_has_everything_and_bytes_that_are_no_text_as_base64() -> None:
    assert json.loads(json_line(RECORD)) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp": 1_714_564_800_123,
        "key": "key",
        "value": "value",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": None}],
    }
    odd = json.loads(json_line(ConsumerRecord("t", 0, 0, value=b"\xff")))
    assert (odd["key"], odd["value_base64"]) == (None, "/w==")
    assert "value" not in odd


@given(
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=20),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    timestamp=st.integers(0, 2**63 - 1),
)
def test_json_is_read_back_as_the_same_record(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int,
) -> None:
    record = ConsumerRecord("t", 1, 2, timestamp, key=key, value=value, headers=tuple(headers))
    line = json_line(record)
    assert line.count(b"\n") == 1
    read = parse_json(line, InputLocation("x", 1))
    assert read == (value, key, tuple(headers), 1, timestamp)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t %p %o %T %k=%v\\n", b"orders 3 42 1714564800123 key=value\n"),
        ("%s|%S|%K|%%|%h", b"value|5|3|%|a=1,b=NULL"),
        ("\\t\\x41\\\\\\r\\0", b"\tA\\\r\0"),
        ("ü%v", "üvalue".encode()),
    ],
)
def test_a_template_is_filled_in(template: str, expected: bytes) -> None:
    assert template_format(template)(RECORD) == expected


def test_lengths_tell_null_from_empty() -> None:
    form = template_format("%K %S [%k%v]")
    assert form(EMPTY) == b"-1 -1 []"
    assert form(ConsumerRecord("t", 0, 0, key=b"", value=b"")) == b"0 0 []"


@pytest.mark.parametrize("template", ["%x", "%v\\q"])
def test_a_template_with_something_unknown_is_refused_with_what_there_is(template: str) -> None:
    with pytest.raises(click.UsageError, match=r"it has %t topic, %p partition"):
        template_format(template)


def test_a_table_is_aligned_under_its_heading() -> None:
    heading = table_heading(True).decode()
    line = table_format(True, None)(RECORD).decode()
    for title, cell in [("OFFSET", "42"), ("KEY", "key"), ("VALUE", "value"), ("TOPIC", "orders")]:
        assert line.index(cell) == heading.index(title), title
    assert line.endswith("value  [a=1 b=(null)]\n")
    assert "orders" not in table_format(False, None)(RECORD).decode()


def test_a_table_is_cut_to_the_terminal_and_cannot_command_it() -> None:
    value = b"\x1b[2J\xff" + b"x" * 500
    record = ConsumerRecord("orders", 3, 42, 1_714_564_800_123, key=b"key", value=value)
    line = table_format(False, 100)(record).decode()
    assert len(line) == 101
    assert line.endswith("…\n")
    assert "\\x1b[2J\\xff" in line


def test_timestamps_are_utc_to_the_millisecond() -> None:
    assert timestamp_text(1_714_564_800_123) == "2024-05-01T12:00:00.123Z"
    assert timestamp_text(-1) == "none"
    assert timestamp_text(2**62) == f"{2**62} ms"
