"""What the data source is told for a topic of a pipeline."""

from headrace.pipelines.frames.dataframes import as_stream, topic_options
from headrace.pipelines.frames.decoding import columns_to_read
from headrace.pipelines.spec.model import Decode, OnError, Pipeline, TopicSource

PIPELINE = Pipeline(
    "shop", (), (), broker={"bootstrap.servers": "b:1", "client.id": "c"}, parallelism=4
)


def test_broker_group_and_parallelism_come_from_the_pipeline() -> None:
    source = TopicSource("orders", ("a", "b"), options={"startingOffsets": "earliest"})
    assert topic_options(PIPELINE, source, ("key", "value"), "shop.out") == {
        "kafka.bootstrap.servers": "b:1",
        "kafka.client.id": "c",
        "subscribe": "a,b",
        "minPartitions": "4",
        "groupId": "shop.out",
        "startingOffsets": "earliest",
        "columns": "key,value",
    }


def test_options_of_the_source_win() -> None:
    own = {"kafka.client.id": "mine", "minPartitions": "9", "groupId": "seen"}
    options = topic_options(
        PIPELINE, TopicSource("orders", pattern="a.*", options=own), ("value",), "shop.out"
    )
    assert options.items() >= own.items()
    assert options["subscribePattern"] == "a.*" and "subscribe" not in options


def test_a_table_shows_no_position() -> None:
    table = TopicSource("prices", ("prices",), streaming=False)
    assert "groupId" not in topic_options(PIPELINE, table, ("value",), "shop.out")


def test_dead_letters_of_a_table_are_read_from_its_start_and_without_end() -> None:
    table = TopicSource("prices", ("p",), streaming=False, options={"endingOffsets": "latest"})
    assert as_stream(table).options == {"startingOffsets": "earliest"}
    begun = TopicSource("prices", ("p",), streaming=False, options={"startingTimestamp": "5"})
    assert as_stream(begun).options == {"startingTimestamp": "5"}
    assert as_stream(begun).streaming


def test_only_columns_that_are_needed_are_read() -> None:
    kafka = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert columns_to_read(Decode()) == kafka
    assert columns_to_read(Decode(keep={"headers": "h"})) == ("value", "headers")
    assert columns_to_read(Decode("json", "id INT")) == ("value",)
    kept = {"timestamp": "received", "key": "key"}
    assert columns_to_read(Decode("json", "id INT", keep=kept)) == ("key", "value", "timestamp")
    failing = Decode("json", "id INT", on_error=OnError.FAIL)
    assert columns_to_read(failing) == ("value", "topic", "partition", "offset")
    headers = topic_options(PIPELINE, TopicSource("o", ("o",)), ("value", "headers"), "g")
    assert headers["includeHeaders"] == "true"
