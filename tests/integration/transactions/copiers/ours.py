"""Copying with headrace's own client."""

from collections.abc import Callable, Mapping
from typing import Any

import headrace
from headrace import TopicPartition
from headrace.errors import ErrorCode
from tests.integration.transactions.copiers.interface import (
    CALL_S,
    REQUEST_MS,
    SESSION_MS,
    Abortable,
    Copier,
    Fenced,
    Taken,
)


class HeadraceCopier(Copier):
    def open_producer(self) -> None:
        job = self.job
        self._producer = headrace.Producer(
            bootstrap_servers=job.bootstrap_servers,
            client_id=job.name,
            transactional_id=job.name,
            transaction_timeout_ms=job.transaction_timeout_ms,
            linger_ms=2,
            request_timeout_ms=REQUEST_MS,
            max_block_ms=int(CALL_S * 1000),
        )
        self._call(self._producer.init_transactions)

    def open_consumer(self) -> None:
        job = self.job
        self._consumer = headrace.Consumer(
            job.source,
            bootstrap_servers=job.bootstrap_servers,
            client_id=job.name,
            group_id=job.group,
            group_instance_id=job.name,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
        )

    def close_producer(self) -> None:
        self._producer.close()

    def close_consumer(self) -> None:
        self._consumer.close()

    def poll(self, seconds: float, count: int) -> list[Taken]:
        found = self._call(
            lambda: self._consumer.poll(timeout_ms=int(seconds * 1000), max_records=count)
        )
        return [Taken(record.partition, record.offset, bytes(record.value)) for record in found]

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, partition: int, value: bytes) -> None:
        self._call(lambda: self._producer.send(self.job.target, value, partition=partition))

    def flush(self) -> None:
        self._call(lambda: self._producer.flush(timeout_ms=int(CALL_S * 1000)))

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        positions = {TopicPartition(self.job.source, offset): at for offset, at in offsets.items()}
        group = self._consumer.group_metadata()
        self._call(lambda: self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._decide(self._producer.commit_transaction)

    def abort(self) -> None:
        self._decide(self._producer.abort_transaction)

    def seek(self, offsets: Mapping[int, int]) -> None:
        assigned = self._consumer.assignment()
        for partition, offset in offsets.items():
            where = TopicPartition(self.job.source, partition)
            # One that was given to another member is that one's business.
            if where in assigned:
                self._consumer.seek(where, offset)

    @staticmethod
    def _call(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except headrace.ProducerFenced as error:
            raise Fenced(str(error)) from None
        except headrace.TransactionFatal:
            raise
        except headrace.HeadraceError as error:
            # Said by the group, of a member whose place another one has.
            code = error.code if isinstance(error, headrace.KafkaError) else ErrorCode.NONE
            if code == ErrorCode.FENCED_INSTANCE_ID:
                raise Fenced(str(error)) from None
            raise Abortable(f"{type(error).__name__}: {error}") from None

    def _decide(self, call: Callable[[], None]) -> None:
        """Commit or abort; asked once more, the producer tells how it ended."""

        def twice() -> None:
            try:
                call()
            except headrace.TimedOut:
                call()

        self._call(twice)
