"""Where queries that have no checkpoint begin, if a reset said so. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from headrace.pipelines.spec.model import Pipeline, TopicSource

EARLIEST = "earliest"
LATEST = "latest"

_GROUP_OFFSETS = "groupoffsets"


def starting_at(pipeline: Pipeline, start: str | None) -> Pipeline:
    """The pipeline with its topics read from there: earliest, latest, or milliseconds since 1970.

    Only a query without a checkpoint looks at it. None leaves the pipeline as it is declared.
    """
    if start is None:
        return pipeline
    sources = tuple(
        replace(one, options=_options(one.options, start))
        if isinstance(one, TopicSource) and one.streaming
        else one
        for one in pipeline.sources
    )
    return replace(pipeline, sources=sources)


def _options(given: Mapping[str, str], start: str) -> dict[str, str]:
    kept = {
        name: text
        for name, text in given.items()
        if not name.lower().startswith("starting") and name.lower() != _GROUP_OFFSETS
    }
    if start in (EARLIEST, LATEST):
        return {**kept, "startingOffsets": start}
    # Where nothing is so new yet, what comes next is.
    return {
        **kept,
        "startingTimestamp": start,
        "startingOffsetsByTimestampStrategy": "latest",
    }
