"""Views of records: what is shown of bytes, safely and within bounds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.console.record_views import (
    LISTED_BYTES,
    PREVIEW_CHARS,
    cell_view,
    hex_dump,
    indented_json,
    record_document,
    record_view,
)

ACTING = set("\x00\x1b\x07\r\x85\u200b\u202e\u2066\ufeff")


@pytest.mark.parametrize(
    ("data", "kind", "views"),
    [
        (None, "null", []),
        (b"", "empty", []),
        (b'{"a": 1}', "JSON", ["JSON", "Text", "Hex"]),
        (b"[NaN]", "text", ["Text", "Hex"]),
        ("Grüße\n".encode(), "text", ["Text", "Hex"]),
        (b"\xff\xfe", "bytes", ["Hex"]),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, kind: str, views: list[str]) -> None:
    view = cell_view(data, len(data or b""), LISTED_BYTES)
    assert view.kind == kind
    assert [name for name, _ in view.views] == views


def test_what_was_cut_is_text_even_through_a_character() -> None:
    whole = b'{"text": "' + "ü".encode() * 5000
    for shown in (LISTED_BYTES, LISTED_BYTES + 1):
        view = cell_view(whole[:shown], len(whole), shown)
        assert (view.kind, view.is_cut, view.size) == ("text", True, len(whole))


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_no_text_of_a_view_acts_and_all_are_bounded(data: bytes) -> None:
    view = cell_view(data, len(data), LISTED_BYTES)
    texts = [view.preview, *(text for _, text in view.views)]
    assert not ACTING & set("".join(texts))
    # A character may become an escape of ten.
    assert len(view.preview) <= 10 * PREVIEW_CHARS


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).filter(lambda document: abs(document) < 2**64 if isinstance(document, int) else True)
)
def test_indented_json_means_the_same(document: object) -> None:
    text = json.dumps(document, ensure_ascii=False)
    assert json.loads(indented_json(text.encode()) or text) == document


def test_numbers_stay_as_they_were_written() -> None:
    data = b'{"price":1.10,"id":12345678901234567890123,"list":[],"none":{}}'
    assert indented_json(data).split("\n") == [
        "{",
        '  "price": 1.10,',
        '  "id": 12345678901234567890123,',
        '  "list": [],',
        '  "none": {}',
        "}",
    ]


def test_deep_json_grows_to_no_multiple_of_its_size() -> None:
    deep = b"[" * 1000 + b"1," * 50_000 + b"1" + b"]" * 1000
    assert len(indented_json(deep)) <= 4 * len(deep) + 70_000


def test_a_dump_has_offsets_bytes_and_letters() -> None:
    assert hex_dump(b"0123456789abcdef\x00<") == (
        "000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "000010  00 3c                                            .<"
    )


def test_a_record_links_to_itself_whatever_its_topic_is_called() -> None:
    headers = [("trace\u202e", b"\x1b[1m"), ("none", None)]
    view = record_view("a/b", (1, 42, 1000), b"k", None, headers)
    assert view.path == "/topics/a%2Fb/messages/1/42"
    assert [name for name, _ in view.headers] == ["trace\\u202e", "none"]
    assert json.loads(json.dumps(record_document(view)))["value"]["kind"] == "null"
