"""The blocking producer: `headrace.Producer`."""

import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from headrace.client.failures import TimedOut
from headrace.client.options import ProducerConfig, producer_options
from headrace.client.producer.accumulator import RecordSender
from headrace.client.producer.delivery import ColumnsFuture, Future
from headrace.client.producer.engine import EXIT_S_MAX, Engine, log
from headrace.client.producer.values import Pending

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
