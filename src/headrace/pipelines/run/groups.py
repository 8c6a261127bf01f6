"""Positions of queries as brokers see them: in the consumer group that each query has."""

import re

from headrace.pipelines.run.fingerprints import topic_sources
from headrace.pipelines.run.places import query_group, query_name
from headrace.pipelines.run.positions import Positions
from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource

_KAFKA = "kafka."
_GROUP_OPTION = "groupid"


def show_positions(pipeline: Pipeline, part: Sink | TopicSource, positions: Positions) -> None:
    """Commit where a query is to its group, at the brokers of each of its sources.

    Its sources do that when they plan a batch, so the one that was the last before a stop is left.
    """
    # It needs Spark, as everything about the data source does.
    from headrace.pipelines.source.groups import commit_progress  # noqa: PLC0415
    from headrace.pipelines.source.offsets import StreamOffset, to_json  # noqa: PLC0415

    for source in topic_sources(pipeline, part):
        mine = {tp: offset for tp, offset in positions.items() if reads(source, tp.topic)}
        group = group_of(pipeline, part, source)
        client = client_properties(pipeline, source)
        commit_progress(client, group, to_json(StreamOffset(mine)))


def client_properties(pipeline: Pipeline, source: TopicSource) -> dict[str, str]:
    """How a source reaches its brokers: as the pipeline does, unless it says so itself."""
    own = {
        name.lower().removeprefix(_KAFKA): text
        for name, text in source.options.items()
        if name.lower().startswith(_KAFKA)
    }
    return {**pipeline.broker, **own}


def group_of(pipeline: Pipeline, part: Sink | TopicSource, source: TopicSource) -> str:
    """The group of a query at a source: its own, unless the source names one."""
    named = [text for name, text in source.options.items() if name.lower() == _GROUP_OPTION]
    return named[0] if named else query_group(pipeline, query_name(part))


def reads(source: TopicSource, topic: str) -> bool:
    """Whether a source reads a topic."""
    if source.pattern is not None:
        return re.fullmatch(source.pattern, topic) is not None
    return topic in source.topics
