"""How late rows may be: watermarks put on frames, and found on them."""

from pyspark.sql import DataFrame

from headrace.pipelines.frames.failures import blaming
from headrace.pipelines.spec.model import Place, Watermark

# What Spark notes in the metadata of a column that has a watermark.
_DELAY = "spark.watermarkDelayMs"


def with_watermark(
    frame: DataFrame, watermark: Watermark | None, part: str, place: Place | None
) -> DataFrame:
    """The frame with its part's watermark, if it has one."""
    if watermark is None:
        return frame
    remedy = "a watermark is a TIMESTAMP column and a delay, as in {column: at, delay: 1 minute}"
    with blaming(place, part, remedy):
        return frame.withWatermark(watermark.column, watermark.delay)


def has_watermark(frame: DataFrame) -> bool:
    """Whether state about the frame's rows can be forgotten at some time."""
    return frame.isStreaming and any(_DELAY in field.metadata for field in frame.schema)
