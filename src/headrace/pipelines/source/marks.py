"""How far the tasks of a query are, as brokers remember it: a mark for each task.

A mark is the committed offset of a consumer group without members that is named as the task's
transactional id. It is committed in the transaction that has the rows, so rows are there if and
only if the mark says so. The partition it is committed for has to exist and means nothing else: it
is the first of each topic that the rows went to. The mark of a topic has the topic's id: rows in a
topic that was deleted are gone, whatever has its name by now.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.administration.group_offsets import GroupOffsets
from headrace.client.consumer.offsets import OffsetAndMetadata
from headrace.client.transport.cluster import Cluster
from headrace.client.transport.coordinators import Coordinators
from headrace.pipelines.source.links import borrowed
from headrace.pipelines.source.topics import topic_ids
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Mark:
    """All batches of a task up to and with this one are written.

    `rows` is how many of the last there were, and `topic_count` to how many topics they went; both
    are None if the commit does not tell. `topic_ids` has the topics that still have the mark, with
    the ids they had: brokers may forget it with the topic.
    """

    batch_id: int
    rows: int | None
    topic_count: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def kept(self, current: Mapping[str, str]) -> list[str]:
        """The topics that still have the rows of the batch, given the ids that topics have now."""
        return sorted(name for name, known in self.topic_ids.items() if current.get(name) == known)


def mark_offsets(
    batch_id: int, rows: int, topics: Iterable[str], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets to commit for a mark in a transaction with rows for these topics.

    As with any group, the offset is that of what comes next.
    """
    named = list(topics)
    document = {"batch": batch_id, "rows": rows, "topics": len(named)}
    return {
        TopicPartition(topic, 0): OffsetAndMetadata(
            batch_id + 1, json.dumps({**document, "topic_id": topic_ids.get(topic)})
        )
        for topic in named
    }


def find_mark(cluster: Mapping[str, str], group: str) -> Mark | None:
    """The mark of a task, if it has any; `cluster` has properties of a client.

    Offsets of transactions that are not ended yet are waited for.
    """
    with borrowed(cluster) as link:
        groups = GroupOffsets(link.cluster, Coordinators(link.cluster))
        return newest(link.run(groups.committed(group, require_stable=True)))


def current_topic_ids(cluster: Mapping[str, str], topics: Iterable[str]) -> dict[str, str]:
    """The ids of topics as the brokers have them now; a topic that is gone is left out."""
    with borrowed(cluster) as link:
        return link.run(_topic_ids(link.cluster, tuple(topics)))


async def _topic_ids(cluster: Cluster, names: tuple[str, ...]) -> dict[str, str]:
    deadline = cluster.deadline()
    view = await cluster.retrying(lambda: cluster.refresh(names, deadline), deadline)
    return topic_ids(view.topics[name] for name in names if name in view.topics)


def newest(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> Mark | None:
    """The mark of the latest batch: a topic that had no rows in it keeps an older one."""
    last = max((offset.offset for offset in committed.values()), default=None)
    if last is None:
        return None
    documents = {
        tp.topic: _document(offset.metadata)
        for tp, offset in committed.items()
        if offset.offset == last
    }
    document = next(iter(documents.values()))
    ids = {topic: known.get("topic_id") for topic, known in documents.items()}
    return Mark(
        last - 1,
        _number(document, "rows"),
        _number(document, "topics"),
        {topic: known for topic, known in ids.items() if isinstance(known, str)},
    )


def _document(metadata: str) -> dict[str, Any]:
    try:
        document = json.loads(metadata)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _number(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return value if isinstance(value, int) else None
