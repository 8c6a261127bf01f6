"""Positions of queries as brokers see them: the consumer group that each query has.

Spark tells a source that a batch is done when it plans the next one, so the last batch of a run
would never be shown; and a query that begins anew is told where by its group.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headrace.client.administration.admin import Admin
from headrace.client.administration.offsets import EARLIEST, LATEST
from headrace.client.options import ADMIN_OPTIONS, from_properties
from headrace.pipelines.run.fingerprints import topic_sources
from headrace.pipelines.run.places import query_group, query_name
from headrace.pipelines.run.positions import Positions
from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource
from headrace.types import TopicPartition

_KAFKA = "kafka."
_GROUP_OPTION = "groupid"


def client_properties(pipeline: Pipeline, source: TopicSource) -> dict[str, str]:
    """How a source reaches its brokers: as the pipeline does, unless it says so itself."""
    own = {
        name.lower().removeprefix(_KAFKA): text
        for name, text in source.options.items()
        if name.lower().startswith(_KAFKA)
    }
    return {**pipeline.broker, **own}


@contextmanager
def open_admin(properties: Mapping[str, str]) -> Iterator[Admin]:
    """An admin client with those of a consumer's properties that it has a use for."""
    known = {name.replace("_", "."): name for name in ADMIN_OPTIONS}
    usable = {name: text for name, text in properties.items() if name in known}
    with Admin(**from_properties(usable, "admin")) as admin:
        yield admin


def show_positions(pipeline: Pipeline, part: Sink | TopicSource, positions: Positions) -> None:
    """Commit where a query is to its group, at the brokers of each of its sources."""
    for source in topic_sources(pipeline, part):
        mine = {tp: offset for tp, offset in positions.items() if reads(source, tp.topic)}
        if mine:
            with open_admin(client_properties(pipeline, source)) as admin:
                admin.alter_group_offsets(group_of(pipeline, part, source), mine)


def group_of(pipeline: Pipeline, part: Sink | TopicSource, source: TopicSource) -> str:
    """The group of a query at a source: its own, unless the source names one."""
    for name, text in source.options.items():
        if name.lower() == _GROUP_OPTION:
            return text
    return query_group(pipeline, query_name(part))


def reads(source: TopicSource, topic: str) -> bool:
    """Whether a source reads a topic."""
    if source.pattern is not None:
        return re.fullmatch(source.pattern, topic) is not None
    return topic in source.topics


def find_offsets(admin: Admin, source: TopicSource, target: int) -> dict[TopicPartition, int]:
    """The offset that a target is in each partition of a source: EARLIEST, LATEST or a time."""
    partitions = [
        TopicPartition(topic.name, one.index)
        for topic in admin.list_topics().values()
        if reads(source, topic.name)
        for one in topic.partitions
    ]
    found = admin.offsets(dict.fromkeys(partitions, target))
    if target in (EARLIEST, LATEST):
        return {tp: one.offset for tp, one in found.items()}
    latest = admin.offsets(dict.fromkeys(partitions, LATEST))
    return {tp: one.offset if one.offset >= 0 else latest[tp].offset for tp, one in found.items()}
