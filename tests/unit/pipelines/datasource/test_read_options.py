"""Options of a read: what is understood, and what the others are told."""

import pickle

import pytest

from headrace.client.property_files import resolved_properties
from headrace.pipelines.datasource.errors import OptionError
from headrace.pipelines.datasource.read_options import (
    COLUMNS,
    EARLIEST,
    LATEST,
    NAMES,
    Bound,
    BoundOffset,
    MicroBatchLimits,
    batch_options,
    read_options,
    stream_options,
)
from headrace.types import TopicPartition
from tools import make_spark_docs

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_defaults() -> None:
    options = read_options({"subscribe": "a"})
    assert options.topics == ("a",)
    assert options.columns == COLUMNS
    assert options.client == {"isolation.level": "read_committed"}
    assert options.fail_on_data_loss
    assert options.limits == MicroBatchLimits()
    assert (options.starting, options.ending, options.group) == (None, None, None)
    assert pickle.loads(pickle.dumps(options)) == options


def test_case_does_not_matter() -> None:
    options = read_options(
        {"SUBSCRIBE": "a", "failondataloss": "False", "KAFKA.Request.Timeout.MS": "7000"}
    )
    assert not options.fail_on_data_loss
    assert options.client["request.timeout.ms"] == "7000"


def test_what_is_read() -> None:
    assert read_options({"subscribe": " a, b,a "}).topics == ("a", "b")
    assert read_options({"subscribePattern": "a-.*"}).pattern == "a-.*"
    assert read_options({"assign": '{"a": [1, 0, 1]}'}).assigned == (A1, A0)
    assert read_options({"path": "data"}).path == "data"
    assert read_options({"path": "data", "subscribe": "a"}).topics == ("a",)


def test_where_it_begins_and_ends() -> None:
    def starting(**given: str) -> Bound | None:
        return read_options({"subscribe": "a"} | given).starting

    assert starting(startingOffsets="Earliest") == Bound("startingOffsets", BoundOffset(EARLIEST))
    assert starting(startingOffsets="latest") == Bound("startingOffsets", BoundOffset(LATEST))
    assert starting(startingOffsets='{"a": {"0": 23, "1": -2}}') == Bound(
        "startingOffsets", each={A0: BoundOffset(23), A1: BoundOffset(EARLIEST)}
    )
    assert starting(startingTimestamp="5") == Bound("startingTimestamp", BoundOffset(time_ms=5))
    assert starting(
        startingOffsetsByTimestamp='{"a": {"0": 9}}', startingOffsetsByTimestampStrategy="latest"
    ) == Bound(
        "startingOffsetsByTimestamp", each={A0: BoundOffset(time_ms=9)}, latest_if_no_record=True
    )
    # The more general option wins, as in Spark.
    both = starting(startingOffsets="earliest", startingTimestamp="5")
    assert both is not None
    assert both.option == "startingTimestamp"
    ending = read_options({"subscribe": "a", "endingTimestamp": "5"}).ending
    assert ending == Bound("endingTimestamp", BoundOffset(time_ms=5), latest_if_no_record=True)


def test_columns() -> None:
    assert read_options({"subscribe": "a", "includeHeaders": "true"}).columns[-1] == "headers"
    assert read_options({"subscribe": "a", "columns": "Value, key"}).columns == ("value", "key")
    chosen = read_options({"subscribe": "a", "columns": "value", "includeHeaders": "true"})
    assert chosen.columns == ("value", "headers")


def test_limits() -> None:
    options = read_options(
        {
            "subscribe": "a",
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2 minutes",
            "maxBytesPerTrigger": "5000",
        }
    )
    assert options.limits == MicroBatchLimits(100, 5000, 10, 120_000)


def test_group_counts_where_nothing_else_says_where_to_start() -> None:
    group = {"subscribe": "a", "groupId": "g"}
    assert read_options(group).group_offsets == "start"
    assert read_options(group | {"startingOffsets": "earliest"}).group_offsets == "ignore"
    chosen = group | {"startingOffsets": "earliest", "groupOffsets": "start"}
    assert read_options(chosen).group_offsets == "start"
    assert read_options(group | {"groupOffsets": "ignore"}).group_offsets == "ignore"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give exactly one of subscribe, subscribePattern, assign; found none of them"),
        ({"subscribe": "a", "assign": "{}"}, "found subscribe and assign"),
        ({"subscribe": " , "}, "option subscribe is empty; say what to read"),
        ({"subscribe": "a", "maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"subscribe": "a", "zebra": "5"}, "unknown option 'zebra' of format \"headrace\"; docs/"),
        ({"subscribePattern": "("}, "give a regular expression for whole topic names"),
        ({"assign": '{"a": 0}'}, 'write it as {"topic": [0, 1]}'),
        ({"assign": '{"a": [-1]}'}, 'write it as {"topic": [0, 1]}'),
        ({"assign": '{"a": []}'}, 'name a partition, as in {"topic": [0, 1]}'),
        ({"assign": "a"}, "option assign cannot be 'a': write it as {\"topic\": [0, 1]}"),
        ({"subscribe": "a", "startingOffsets": "first"}, "write it as earliest, latest or {"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "write it as earliest,"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"x": 3}}'}, "write it as earliest,"),
        ({"subscribe": "a", "startingOffsets": '{"a": 3}'}, "write it as earliest,"),
        ({"subscribe": "a", "startingTimestamp": "now"}, "it must be milliseconds since 1970"),
        (
            {"startingOffsetsByTimestampStrategy": "fail", "startingTimestamp": "1"},
            "it must be one of error, latest",
        ),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "'no': it must be true or false"),
        ({"subscribe": "a", "minPartitions": "0"}, "it must be a whole number of at least 1"),
        ({"subscribe": "a", "columns": "valeu"}, "did you mean value?"),
        ({"subscribe": "a", "columns": ","}, "name some of key, value"),
        (
            {"subscribe": "a", "maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"},
            "minOffsetsPerTrigger (2) is more than maxOffsetsPerTrigger (1)",
        ),
        ({"subscribe": "a", "maxTriggerDelay": "1m"}, "give that too"),
        (
            {"subscribe": "a", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "soon"},
            "write it as 30s, 15m or 1h",
        ),
        ({"subscribe": "a", "groupOffsets": "start"}, "how to use groupId; give that too"),
        (
            {"subscribe": "a", "groupId": "g", "groupOffsets": "yes"},
            "it must be one of start, ignore",
        ),
        ({"subscribe": "a", "kafka.group.id": "g"}, "groupId names the group"),
        ({"subscribe": "a", "groupIdPrefix": "g"}, "groupId names the group"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "with startingOffsets"),
        ({"subscribe": "a", "kafka.enable.auto.commit": "true"}, "the checkpoint has the position"),
        ({"subscribe": "a", "topic": "b"}, "belongs to writing"),
        ({"subscribe": "a", "kafka.fetch.min.byte": "1"}, "did you mean fetch.min.bytes?"),
        ({"subscribe": "a", "kafka.isolation.level": "dirty"}, "isolation.level cannot be 'dirty'"),
    ],
)
def test_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_options(given)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"a": {"0": -1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"a": {"0": -2}}'},
    ],
)
def test_a_batch_has_something_to_read(given: dict[str, str]) -> None:
    read_options({"subscribe": "a"} | given)
    with pytest.raises(OptionError, match="it would read nothing"):
        batch_options({"subscribe": "a"} | given)


def test_a_stream_has_no_end_and_no_path() -> None:
    assert stream_options({"subscribe": "a", "startingOffsets": "latest"}).starting is not None
    with pytest.raises(OptionError, match=r"endingTimestamp is not for streams.*availableNow"):
        stream_options({"subscribe": "a", "endingTimestamp": "5"})
    with pytest.raises(OptionError, match="path is not for streams"):
        stream_options({"path": "data"})


def test_places_cover_every_partition_and_no_other() -> None:
    bound = Bound("startingOffsets", each={A0: BoundOffset(5), A1: BoundOffset(EARLIEST)})
    assert bound.places([A1, A0]) == {A1: BoundOffset(EARLIEST), A0: BoundOffset(5)}
    assert Bound("x", BoundOffset(LATEST)).places([A0, A1]) == {
        A0: BoundOffset(-1),
        A1: BoundOffset(-1),
    }
    with pytest.raises(OptionError, match=r"says nothing of b-0; give an offset, -2 or -1 for"):
        bound.places([A0, A1, TopicPartition("b", 0)])
    with pytest.raises(OptionError, match=r"names a-1, which is not read or does not exist"):
        bound.places([A0])


def test_options_hold_references_and_not_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"subscribe": "a", "kafka.sasl.password": "${env:THE_PASSWORD}"}
    with pytest.raises(OptionError, match=r"sasl\.password refers to the variable THE_PASSWORD"):
        read_options(given)
    monkeypatch.setenv("THE_PASSWORD", "wonderland")
    options = read_options(given)
    assert options.client["sasl.password"] == "${env:THE_PASSWORD}"
    assert resolved_properties(options.client)["sasl.password"] == "wonderland"
    literal = read_options(given | {"kafka.sasl.password": "wonderland"})
    assert "wonderland" not in repr(literal)


def test_the_guide_is_what_the_options_say() -> None:
    page = make_spark_docs.PAGE.read_text()
    assert [name for name in NAMES if f"`{name}`" not in page] == []
    assert page == make_spark_docs.with_options(page), "run tools/make_spark_docs.py"
