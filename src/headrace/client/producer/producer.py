"""The blocking producer: `headrace.Producer`."""

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from headrace.client.consumer.arguments import Offsets, group_of, offsets_of
from headrace.client.errors import TimedOut
from headrace.client.options import ProducerConfig, producer_options
from headrace.client.producer.accumulator import RecordSender
from headrace.client.producer.delivery import ColumnsFuture, Future
from headrace.client.producer.producer_engine import EXIT_S_MAX, Engine, log
from headrace.client.producer.transaction_manager import Transactor
from headrace.client.types import ConsumerGroupMetadata, Pending

if TYPE_CHECKING:
    import pyarrow


class Producer(RecordSender):
    """Sends records to the topics of a cluster. May be shared by threads.

    It connects when first used, gathers records into batches (`batch_size`, `linger_ms`), and sends
    them from a thread of its own. With the defaults a record is written once and in order, even
    when brokers fail in between. Options are keyword arguments; docs/client-options.md has all.

    Close it with `close` or a `with` block: both wait for what was sent. A producer that is not
    closed still delivers its records: in the background when nobody holds it any more, and for up
    to 10 s at the end of the process, after which a warning is logged.

    >>> with headrace.Producer(linger_ms=20, compression_type="zstd") as producer:
    ...     future = producer.send(topic, "hello", key="greeting")
    >>> future.result().offset
    0
    """

    def __init__(self, **options: Unpack[ProducerConfig]) -> None:
        engine = Engine(producer_options(**options))
        super().__init__(engine.accumulator)
        self._engine = engine
        self._finalizer = weakref.finalize(self, engine.abandon)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        options = self._engine.options
        servers = ",".join(map(str, options.bootstrap_servers))
        state = "closed" if self._engine.is_closed else f"{self._accumulator.records} unsettled"
        return f"<headrace.Producer {options.client_id} of {servers}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        # What failed is more urgent than what is unsent, and must not be hidden by it.
        try:
            self.close(timeout_ms=int(EXIT_S_MAX * 1000))
        except TimedOut as late:
            log.warning("%s", late)

    @property
    def client_id(self) -> str:
        """What the broker's log and the metrics call this client."""
        return self._engine.options.client_id

    def send_arrow(self, topic: str, batch: "pyarrow.RecordBatch | pyarrow.Table") -> ColumnsFuture:
        """Send the rows of Arrow columns, without a Python object for each.

        Columns are `value` and, if wanted, `key` (binary or text), `timestamp` (milliseconds or an
        Arrow timestamp), `partition` and `headers`. Rows without a partition go where `send` puts
        their keys; rows without a key stay together. The result is a list of `BatchMetadata`.

        >>> import pyarrow
        >>> rows = pyarrow.record_batch({"key": [b"a", b"b"], "value": [b"1", b"2"]})
        >>> sum(written.count for written in producer.send_arrow(topic, rows).result())
        2
        """
        return self._engine.send_columns(topic, batch)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Return when every record sent so far has its outcome; `TimedOut` says how many have not.

        Records that failed do not raise here: their futures have the exceptions.

        >>> future = producer.send(topic, b"hello")
        >>> producer.flush()
        >>> future.done()
        True
        """
        self._engine.flush(None if timeout_ms is None else timeout_ms / 1000)

    def close(self, timeout_ms: int | None = None) -> None:
        """Deliver what was sent, and end. May be called again; `send` raises `Closed` from now.

        Without a timeout it ends when every record has its outcome, which `delivery_timeout_ms`
        limits. With one, records that have none by then fail with `Closed`, and `TimedOut` says
        how many there were.
        """
        self._finalizer.detach()
        self._engine.close(None if timeout_ms is None else timeout_ms / 1000)

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, which is created if the broker creates topics by itself.

        >>> producer.partitions_for(topic)
        [0]
        """
        deadline = time.monotonic() + self._engine.options.max_block_ms / 1000
        return list(range(self._engine.know(topic, None, deadline)))

    # -- transactions

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A block whose records, and offsets, are committed together at its end or not at all.

        An exception aborts the transaction and goes on. If the transaction cannot be committed,
        because a record could not be written for example, it is aborted and
        `TransactionAbortable` raised; the next transaction may begin then. `ProducerFenced` says
        that another producer has taken over, and `TimedOut` of the commit that its outcome is not
        known: call `commit_transaction` again to learn it.

        >>> with headrace.Producer(transactional_id=f"{topic}-copier") as copier:
        ...     with copier.transaction():
        ...         future = copier.send(topic, "first")
        ...         future = copier.send(topic, "second")
        >>> future.result().offset
        1
        """
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException as error:
            self._engine.abort_after(error)
            raise

    def init_transactions(self) -> None:
        """Take over the transactional id: abort what its last user left open, and fence that one.

        The first transaction does so by itself. Call this before a consumer is asked for what was
        committed: offsets in a transaction that was left open have to be decided first.
        """
        self._engine.transact("init_transactions()", Transactor.init)

    def begin_transaction(self) -> None:
        """Begin a transaction; records can be sent until it is committed or aborted.

        >>> with headrace.Producer(transactional_id=f"{topic}-writer") as writer:
        ...     writer.begin_transaction()
        ...     future = writer.send(topic, "kept")
        ...     writer.commit_transaction()
        ...     writer.begin_transaction()
        ...     future = writer.send(topic, "dropped")
        ...     writer.abort_transaction()
        """
        self._engine.transact("begin_transaction()", Transactor.begin)

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a group's offsets with the transaction: they count if and when it is committed.

        `offsets` has the next offset to read of each partition, as `Consumer.positions` gives
        them. With `Consumer.group_metadata()` the coordinator refuses them, by
        `TransactionAbortable`, if the partitions belong to another member of the group by now; the
        name of a group alone checks nothing.
        """
        known = offsets_of(offsets)
        group = group_of(group_metadata)
        self._engine.transact(
            "send_offsets_to_transaction()", lambda one: one.send_offsets(known, group)
        )

    def commit_transaction(self) -> None:
        """Wait for every record of the transaction, and commit it.

        `TransactionAbortable`: it cannot be committed, call `abort_transaction`. `TimedOut`: no
        coordinator has answered within `max_block_ms`; call this again to learn the outcome.
        """
        self._engine.transact("commit_transaction()", Transactor.commit)

    def abort_transaction(self) -> None:
        """Abort the transaction; records that are not acknowledged fail with `TransactionAborted`.

        After `TimedOut` call it again, or begin another transaction, which finishes it first.
        """
        self._engine.transact("abort_transaction()", Transactor.abort)

    def metrics(self) -> dict[str, float]:
        """What this producer has counted, under Kafka's names.

        >>> producer.send(topic, b"hello").result().offset
        0
        >>> producer.metrics()["record-send-total"] >= 1
        True
        """
        self._engine.metrics.queued(self._accumulator.used_bytes)
        return self._engine.metrics.snapshot()

    def _send_later(self, pending: Pending) -> Future:
        return self._engine.send_later(pending)
