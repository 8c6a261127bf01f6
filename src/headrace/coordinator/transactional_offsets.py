"""Offsets that are part of transactions: who may commit them, and where they wait for the end."""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from headrace.coordinator.classic import ClassicGroup, State
from headrace.errors import ErrorCode
from headrace.protocol.messages.offsets_records import OffsetCommitValue
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_Key = TypeVar("_Key", int, str)


class Place(NamedTuple):
    """What an offset is committed for."""

    group: str
    topic: str
    partition: int


class PendingOffsets:
    """Offsets in the log whose transactions are open: each takes hold if its transaction commits.

    Invariant: the offsets of a place are in the order of the log, and all of them are later than
    the one that holds there. So an offset that takes hold drops those before it: whichever
    transaction ends last, the offset that was written last wins. Unlike Kafka: a place whose
    pending offsets are all overtaken counts as stable again, since they cannot change it.
    """

    def __init__(self) -> None:
        self._places: dict[Place, dict[int, OffsetCommitValue]] = {}
        # In the order of the log, so that a run of the simulator repeats itself.
        self._by_producer: dict[int, dict[Place, None]] = {}
        self._by_group: dict[str, dict[Place, None]] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._places

    def of_group(self, group_id: str) -> Iterator[Place]:
        """The places of a group where an offset waits."""
        return iter(self._by_group.get(group_id, ()))

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def newest(self, place: Place) -> OffsetCommitValue | None:
        """The offset that was written last of those that wait at a place."""
        values = self._places.get(place)
        return None if values is None else next(reversed(values.values()))

    def add(self, place: Place, producer_id: int, value: OffsetCommitValue) -> None:
        """Take over an offset from the log, in place of an earlier one of its transaction."""
        values = self._places.setdefault(place, {})
        values.pop(producer_id, None)
        values[producer_id] = value
        self._by_producer.setdefault(producer_id, {})[place] = None
        self._by_group.setdefault(place.group, {})[place] = None

    def drop(self, place: Place) -> None:
        """Something else is written there: nothing from before it takes hold any more."""
        for producer_id in tuple(self._places.get(place, ())):
            self._remove(place, producer_id)

    def end(self, producer_id: int, committed: bool) -> list[tuple[Place, OffsetCommitValue]]:
        """End a transaction: its offsets, which wait no longer, whether they take hold or not."""
        ended = []
        for place in tuple(self._by_producer.get(producer_id, ())):
            values = self._places[place]
            ended.append((place, values[producer_id]))
            while committed and (earlier := next(iter(values))) != producer_id:
                self._remove(place, earlier)
            self._remove(place, producer_id)
        return ended

    def _remove(self, place: Place, producer_id: int) -> None:
        values = self._places[place]
        del values[producer_id]
        _discard(self._by_producer, producer_id, place)
        if not values:
            del self._places[place]
            _discard(self._by_group, place.group, place)


def _discard(index: dict[_Key, dict[Place, None]], key: _Key, place: Place) -> None:
    places = index[key]
    del places[place]
    if not places:
        del index[key]


def check_txn_commit(group: ClassicGroup, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Whether a transaction may commit offsets of a group.

    A producer that says nothing of a membership may always: versions before 3 cannot, and there the
    transaction alone has to keep zombies out. A rebalance does not matter, since what a member of
    this generation has read is its own until the next one begins.
    """
    generation, member_id = request.generation_id, request.member_id
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is State.EMPTY:
        return ErrorCode.NONE
    if generation < 0 and not member_id and request.group_instance_id is None:
        return ErrorCode.NONE
    code = group.check_member(member_id, request.group_instance_id)
    if code is not ErrorCode.NONE:
        return code
    return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def refused_txn_commit(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=code
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
