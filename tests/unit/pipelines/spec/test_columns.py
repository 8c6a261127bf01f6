"""The columns of a declared schema, and what is told of one that is wrong."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.spec.checks import avro_columns, ddl_columns, source_columns
from headrace.pipelines.spec.model import Decode, FormatSource, TopicSource
from tests.unit.pipelines.spec.schemas import SCHEMAS

STRUCT = json.dumps({"type": "struct", "fields": [{"name": "id"}, {"name": "at"}]})


@pytest.mark.parametrize(("schema", "columns"), [*SCHEMAS, (STRUCT, ["id", "at"])])
def test_columns_of_sparks_schema(schema: str, columns: list[str]) -> None:
    assert list(ddl_columns(schema)) == columns


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id", "'id' is no column: write its name and its type, as in id BIGINT"),
        ("id BIGINT,", "'' is no column"),
        ("id BIGNT", "'BIGNT' in 'id BIGNT' is no type of Spark; did you mean BIGINT?"),
        ("id TEXT_OF_SOME_KIND", "is no type of Spark"),
        ("id ARRAY<INT", "its brackets or quotes do not match"),
        ("id INT>, b INT", "its brackets or quotes do not match"),
        ("id INT, ID INT", "it has two columns named 'id'"),
        ('{"type": "struct"}', "it is no struct in the JSON form of Spark"),
        ("{", "it is no struct in the JSON form of Spark"),
    ],
)
def test_wrong_schemas_of_spark(schema: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ddl_columns(schema)
    assert message in str(caught.value)


def record(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": list(fields)})


def test_columns_of_an_avro_record() -> None:
    text = record({"name": "id", "type": "long"}, {"name": "at", "type": ["null", "string"]})
    assert avro_columns(text) == ("id", "at")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("record", "it is not JSON: "),
        ('"string"', "it must be that of a record, whose fields become the columns"),
        ('["null", "string"]', "it must be that of a record"),
        (record({"name": "id", "type": "lng"}), "it has an unknown type: lng"),
        (record({"type": "long"}), "name"),
        ('{"type": "record", "name": "r"}', "fields"),
        ("{}", "type"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_wrong_schemas_of_avro(schema: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        avro_columns(schema)
    assert message in str(caught.value)


documents = st.recursive(
    st.none() | st.integers() | st.sampled_from(["record", "long", "string", "r", "array", "enum"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "symbols"]), inner)
    ),
    max_leaves=10,
)


@given(documents)
def test_any_document_is_an_avro_record_or_refused(document: object) -> None:
    with suppress(ValueError):
        avro_columns(json.dumps(document))


@given(st.text(alphabet=st.sampled_from("ab ,<>()`':INT{}\"[]")))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert all(ddl_columns(text))


def test_columns_of_sources() -> None:
    decode = Decode("json", schema="id BIGINT", keep={"timestamp": "received"})
    assert source_columns(TopicSource("a", topics=("a",), decode=decode)) == ("id", "received")
    raw = source_columns(TopicSource("a", topics=("a",)))
    assert raw is not None and raw[:2] == ("key", "value")
    assert source_columns(TopicSource("a", decode=Decode("raw", keep={"key": "k"}))) is None
    assert source_columns(TopicSource("a", decode=Decode("json", schema="x"))) is None
    assert source_columns(FormatSource("a", "csv", schema="x INT")) == ("x",)
    assert source_columns(FormatSource("a", "parquet")) is None
