"""How far the tasks of a query are, as brokers remember it: a mark for each task.

A mark is the committed offset of a consumer group without members that is named as the task's
transactional id. It is committed in the transaction that has the rows, so rows are there if and
only if the mark says so. The partition it is committed for has to exist and means nothing else: it
is the first of each topic that the rows went to.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.client.administration.group_offsets import GroupOffsets
from headrace.client.consumer.offsets import OffsetAndMetadata
from headrace.client.transport.coordinators import Coordinators
from headrace.pipelines.source.links import borrowed
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Mark:
    """All batches of a task up to and with this one are written.

    `rows` is how many of the last there were; None if what is committed does not tell.
    """

    batch_id: int
    rows: int | None

    def offsets(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit for this mark in a transaction with rows for these topics.

        As with any group, the offset is that of what comes next.
        """
        metadata = json.dumps({"batch": self.batch_id, "rows": self.rows})
        committed = OffsetAndMetadata(self.batch_id + 1, metadata)
        return {TopicPartition(topic, 0): committed for topic in topics}


def find_mark(cluster: Mapping[str, str], group: str) -> Mark | None:
    """The mark of a task, if it has any; `cluster` has properties of a client.

    Offsets of transactions that are not ended yet are waited for.
    """
    with borrowed(cluster) as link:
        groups = GroupOffsets(link.cluster, Coordinators(link.cluster))
        return newest(link.run(groups.committed(group, require_stable=True)).values())


def newest(committed: Iterable[OffsetAndMetadata]) -> Mark | None:
    """The mark of the latest batch: a topic that had no rows in it keeps an older one.

    >>> newest([OffsetAndMetadata(8, '{"batch": 7, "rows": 3}'), OffsetAndMetadata(7)])
    Mark(batch_id=7, rows=3)
    """
    last = max(committed, key=lambda one: one.offset, default=None)
    return None if last is None else Mark(last.offset - 1, _rows(last.metadata))


def _rows(metadata: str) -> int | None:
    try:
        told = json.loads(metadata)
    except ValueError:
        return None
    rows = told.get("rows") if isinstance(told, dict) else None
    return rows if isinstance(rows, int) else None
