"""Batches as brokers send them, and subscriptions that hold some."""

from collections.abc import Iterable

from headrace.client.consumer.completed_fetch import completed_fetch_of
from headrace.client.consumer.subscription import PartitionState, SubscriptionState
from headrace.protocol.records import encode_batch
from headrace.types import TopicPartition

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)

ABORT = b"\0\0\0\0"
COMMIT = b"\0\0\0\1"


def batch(base_offset: int, count: int = 1, **options: object) -> bytes:
    """A batch of `count` records whose values are their offsets."""
    rows = [
        (1000 + offset, None, b"%d" % offset, ())
        for offset in range(base_offset, base_offset + count)
    ]
    return bytes(encode_batch(rows, base_offset=base_offset, **options))  # type: ignore[arg-type]


def marker(base_offset: int, producer_id: int, key: bytes) -> bytes:
    """The control batch that ends a transaction."""
    return bytes(
        encode_batch(
            [(0, key, bytes(6), ())],
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
    )


def written(base_offset: int, producer_id: int, count: int = 1) -> bytes:
    """A batch of a transaction."""
    return batch(
        base_offset,
        count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base_offset,
        transactional=True,
    )


def reading(*partitions: TopicPartition, position: int = 0) -> SubscriptionState:
    """A subscription that reads partitions from a position on."""
    subscription = SubscriptionState()
    subscription.set_partitions(partitions or (TP,))
    for tp in partitions or (TP,):
        subscription.seek(tp, position)
    return subscription


def fetched(
    subscription: SubscriptionState, batches: Iterable[bytes], tp: TopicPartition = TP
) -> PartitionState:
    """Have an answer with batches come in."""
    state = subscription.state(tp)
    completed = completed_fetch_of(b"".join(batches), state.fetch_offset)
    assert completed is not None
    assert subscription.add(state, state.generation, completed)
    return state
