"""What the blocking and the asyncio consumer have in common: everything that needs no waiting."""

from collections.abc import Callable, Sequence
from re import Pattern
from typing import Any

from headrace.client.consumer import arguments
from headrace.client.consumer.arguments import Offsets, Partitions
from headrace.client.consumer.completed_fetch import Rows
from headrace.client.consumer.consumer_engine import Engine
from headrace.client.consumer.rebalance_listener import Listener
from headrace.client.errors import Closed, IllegalState
from headrace.client.options import ConsumerConfig, consumer_options
from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.types import TopicPartition

CLOSE_MS = 10_000
# A poll that waits looks this often whether its group has failed.
WAIT_S_MAX = 0.2

NO_ROWS = Rows([], 0, 0)


class Facade:
    """A consumer without its waiting. `post` and `wake` connect it to the loop of its engine."""

    def __init__(
        self,
        topics: Sequence[str],
        options: ConsumerConfig,
        connect: Callable[[str], tuple[Callable[..., None], Callable[[], None]]],
    ) -> None:
        self._options = consumer_options(**options)
        names = arguments.topics_of(topics) if topics else None
        post, wake = connect(self._options.client_id)
        self._engine = Engine(self._options, post=post, wake=wake)
        self._is_closed = False
        self._rows = NO_ROWS
        if names is not None:
            self._engine.subscribe(names, None, None)

    def __repr__(self) -> str:
        group = f", group {self._options.group_id}" if self._options.group_id else ""
        state = "closed" if self._is_closed else f"{len(self.assignment())} partitions"
        return f"<{type(self).__name__} {self._options.client_id}{group}, {state}>"

    @property
    def client_id(self) -> str:
        """What the broker's log and the metrics call this client."""
        return self._options.client_id

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer reads at the moment."""
        with self._engine.subscription.lock:
            return set(self._engine.subscription.states)

    def subscription(self) -> set[str]:
        """The topics subscribed to; those a pattern matches at the moment."""
        return set(self._engine.subscription.topics)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        with self._engine.subscription.lock:
            states = self._engine.subscription.states
            return {tp for tp, state in states.items() if state.is_paused}

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, after what was polled; `commit()` commits these.

        A partition is missing as long as it has no position.
        """
        with self._engine.subscription.lock:
            return self._engine.subscription.positions()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group, for `Producer.send_offsets_to_transaction`."""
        return self._engine.committing.group_metadata()

    def lag(self) -> dict[TopicPartition, int]:
        """How many records each partition has that were not polled, as far as was heard."""
        return self._engine.metrics.lags()

    def metrics(self) -> dict[str, float]:
        """What this consumer has done, by Kafka's names for it."""
        return self._engine.metrics.snapshot()

    def _subscribe(
        self, topics: Any, pattern: str | Pattern[str] | None, listener: Listener | None
    ) -> None:
        self._check_open()
        if (topics is None) == (pattern is None):
            raise IllegalState("subscribe to topics or to a pattern: give one of the two")
        if topics is not None:
            self._engine.subscribe(arguments.topics_of(topics), None, listener)
        else:
            self._engine.subscribe(None, arguments.pattern_of(pattern), listener)

    def _seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        self._check_open()
        where = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        tp = arguments.partition_of(partition)
        self._engine.seek(tp, arguments.offset_of(where.offset), where.leader_epoch)

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._options.max_poll_records
        return arguments.count_of(max_records, "max_records")

    def _partitions(self, given: Sequence[Partitions]) -> list[TopicPartition]:
        """What a call is about; if it does not say, all assigned partitions."""
        self._check_open()
        return arguments.partitions_of(given) if given else sorted(self.assignment())

    def _offsets(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit is about."""
        self._check_open()
        given = None if offsets is None else arguments.offsets_of(offsets)
        return self._engine.committing.wanted(given)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed; make a new one")
