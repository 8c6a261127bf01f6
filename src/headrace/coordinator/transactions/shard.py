"""All transactional ids of one partition of `__transaction_state`."""

from collections.abc import Collection, Iterable

from headrace.coordinator.shard import NO_PRODUCER, Client, Effects, Record, Reply, Token
from headrace.coordinator.transactions.values import MarkerOrder, TransactionSettings
from headrace.protocol.markers import Marker
from headrace.protocol.messages.describe_transactions import TransactionState
from headrace.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition


class TransactionShard:
    """All transactional ids of one partition of `__transaction_state`. Not thread-safe.

    To load: `replay` every record in order, then `loaded`. From then on `handle`, `tick` and
    `marker_written` return effects, and `commit` says what to send once these have taken place.
    After `loaded` and after every `commit` the shell asks for `take_orders`.

    Requests: InitProducerIdRequest (with a transactional id), EndTxnRequest, AddPartitions and
    AddOffsets, each with the version that the client sent.
    """

    def __init__(self, settings: TransactionSettings, coordinator_epoch: int) -> None:
        """`coordinator_epoch` is the leader epoch of the partition; markers carry it."""
        raise NotImplementedError

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has to be called next; None if nothing will ever be due."""
        raise NotImplementedError

    @property
    def wants_producer_ids(self) -> int:
        """How many producer ids to give; an InitProducerId may need one of them at once.

        Without one it is answered COORDINATOR_LOAD_IN_PROGRESS: top up before handling it.
        """
        raise NotImplementedError

    def give_producer_ids(self, producer_ids: Iterable[int]) -> None:
        """Take producer ids that nobody has used."""
        raise NotImplementedError

    def handle(
        self, request: Message, version: int, token: Token, client: Client, now_ms: int
    ) -> Effects:
        """Decide a request that names one transactional id."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> Effects:
        """Do what is due: abort transactions that have timed out, remove ids unused for long."""
        raise NotImplementedError

    def marker_written(
        self,
        transactional_id: str,
        marker: Marker,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> Effects:
        """A marker of an order is written to these partitions, or they do not exist any more.

        `marker` is the order's. One that is not the latest of its transactional id is ignored.
        """
        raise NotImplementedError

    def take_orders(self) -> list[MarkerOrder]:
        """Markers to be written since the last call."""
        raise NotImplementedError

    def replay(self, record: Record, producer_id: int = NO_PRODUCER) -> None:
        """Take over one committed record; RecordError if it cannot be read."""
        raise NotImplementedError

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Nothing: the records of this topic are never part of a transaction."""

    def loaded(self, now_ms: int) -> None:
        """End loading: order the markers of what was decided, watch what was open."""
        raise NotImplementedError

    def commit(self, effects: Effects, now_ms: int) -> tuple[Reply, ...]:
        """Replay records that are committed; return the replies that waited for them."""
        raise NotImplementedError

    def cancel(self, token: Token) -> None:
        """Nothing: a request waits for nothing but its record."""

    def describe(self, transactional_id: str) -> TransactionState:
        """One transactional id for DescribeTransactions."""
        raise NotImplementedError

    def list(self, request: ListTransactionsRequest, now_ms: int) -> ListTransactionsResponse:
        """The transactional ids that pass the request's filters, and the states not known.

        Patterns (version 2) are not looked at: the shell must not announce them.
        """
        raise NotImplementedError
