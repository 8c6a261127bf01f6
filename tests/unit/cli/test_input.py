import io
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import produce as input_module
from headrace.cli.produce import (
    InputError,
    InputLocation,
    InputRecord,
    ReaderCallbacks,
    parse_json,
    read_lines,
    read_whole,
    split_key,
)

PLACE = InputLocation("data.txt", 7)


def watch(read: list[int] | None = None) -> ReaderCallbacks:
    return ReaderCallbacks((read if read is not None else []).append, nullcontext)


@given(data=st.binary(max_size=200), chunk_bytes=st.integers(1, 20))
def test_lines_are_what_splitting_at_newlines_gives(data: bytes, chunk_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_module, "_CHUNK_BYTES", chunk_bytes)
        read: list[int] = []
        found = list(read_lines(io.BytesIO(data), "x", watch(read=read)))
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line for _, line in found] == expected
    assert [place.line for place, _ in found] == list(range(1, len(expected) + 1))
    assert sum(read) == len(data)


def test_a_line_that_no_broker_takes_is_refused_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_module, "RECORD_BYTES_MAX", 100)
    monkeypatch.setattr(input_module, "_CHUNK_BYTES", 60)
    stream = io.BytesIO(b"ok\n" + b"x" * 1000)
    with pytest.raises(InputError, match=r"line 2 of big\.txt is longer than 100 bytes"):
        list(read_lines(stream, "big.txt", watch()))
    assert stream.tell() < 200


def test_lines_come_as_soon_as_they_are_there() -> None:
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb", 0) as stream:
        os.write(writable, b"one\ntw")
        lines = read_lines(stream, "pipe", watch())
        assert next(lines)[1] == b"one"
        os.write(writable, b"o\n")
        os.close(writable)
        assert [line for _, line in lines] == [b"two"]


def test_a_file_is_read_whole_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_module, "RECORD_BYTES_MAX", 5)
    assert read_whole(io.BytesIO(b"12345"), "f") == b"12345"
    with pytest.raises(InputError, match="f is larger than 5 bytes"):
        read_whole(io.BytesIO(b"123456"), "f")


def test_a_key_ends_at_the_first_separator() -> None:
    assert split_key(b"k::v::w", b"::", PLACE) == InputRecord(b"v::w", b"k")
    with pytest.raises(InputError, match=r"line 7 of data\.txt has no key separator ':'"):
        split_key(b"kv", b":", PLACE)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{}", InputRecord(None)),
        ('{"value": "ü", "key": null}', InputRecord("ü".encode())),
        ('{"value": {"a": [1, "ü"]}}', InputRecord('{"a": [1, "ü"]}'.encode())),
        ('{"value": 5, "key": true}', InputRecord(b"5", b"true")),
        ('{"value_base64": "/w=="}', InputRecord(b"\xff")),
        (
            '{"headers": {"a": "1", "b": null}}',
            InputRecord(None, headers=(("a", b"1"), ("b", None))),
        ),
        (
            '{"headers": [{"name": "a", "value_base64": "/w=="}, {"name": "a"}]}',
            InputRecord(None, headers=(("a", b"\xff"), ("a", None))),
        ),
        (
            '{"value": "v", "partition": 3, "timestamp": 9, "topic": "x", "offset": 4}',
            InputRecord(b"v", partition=3, timestamp=9),
        ),
    ],
)
def test_json_becomes_a_record(line: str, expected: InputRecord) -> None:
    assert parse_json(line.encode(), PLACE) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "Expecting value"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xfe{}x", "no record"),
        (b'{"valu": 1}', "unknown field 'valu'"),
        (b'{"value": "a", "value_base64": "YQ=="}', "both value and value_base64"),
        (b'{"value_base64": "?"}', "value_base64 is not base64"),
        (b'{"value_base64": 5}', "value_base64 is not base64"),
        (b'{"headers": "x"}', "neither an object nor a list"),
        (b'{"headers": [{"value": 1}]}', "a header without a name"),
        (b'{"partition": -1}', "partition is -1"),
        (b'{"partition": true}', "partition is True"),
        (b'{"timestamp": "now"}', "timestamp is 'now'"),
        (b"[" * 100_000, "no record"),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(line: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=r"line 7 of data\.txt is no record") as caught:
        parse_json(line, PLACE)
    assert reason in str(caught.value)
    assert "one JSON object a line" in str(caught.value)
