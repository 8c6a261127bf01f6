"""Copying with kafka-python."""

from collections.abc import Callable, Mapping
from typing import Any

import kafka
from kafka import errors

from tests.integration.transactions.copiers.interface import (
    CALL_S,
    REQUEST_MS,
    SESSION_MS,
    Abortable,
    Copier,
    Fenced,
    Taken,
)

_FENCED = (
    errors.ProducerFencedError,
    errors.InvalidProducerEpochError,
    errors.FencedInstanceIdError,
)
# A poll that ends while the group is being joined makes it forget what it is assigned.
_POLL_S_MIN = 2.0


class KafkaPythonCopier(Copier):
    def open_producer(self) -> None:
        job = self.job
        servers = job.bootstrap_servers.split(",")
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
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
        servers = job.bootstrap_servers.split(",")
        self._consumer = kafka.KafkaConsumer(
            job.source,
            bootstrap_servers=servers,
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
        self._producer.close(timeout=CALL_S)

    def close_consumer(self) -> None:
        self._consumer.close()

    def poll(self, seconds: float, count: int) -> list[Taken]:
        timeout_ms = int(max(seconds, _POLL_S_MIN) * 1000)
        found: dict[Any, list[Any]] = self._call(
            lambda: self._consumer.poll(timeout_ms=timeout_ms, max_records=count)
        )
        return [
            Taken(record.partition, record.offset, record.value)
            for records in found.values()
            for record in records
        ]

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, partition: int, value: bytes) -> None:
        self._call(lambda: self._producer.send(self.job.target, value=value, partition=partition))

    def flush(self) -> None:
        self._call(lambda: self._producer.flush(timeout=CALL_S))

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        positions = {
            kafka.TopicPartition(self.job.source, offset): kafka.OffsetAndMetadata(at, "", -1)
            for offset, at in offsets.items()
        }
        group = self._consumer.group_metadata()
        self._call(lambda: self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def seek(self, offsets: Mapping[int, int]) -> None:
        assigned = self._consumer.assignment()
        for partition, offset in offsets.items():
            where = kafka.TopicPartition(self.job.source, partition)
            # One that was given to another member is that one's business.
            if where in assigned:
                self._consumer.seek(where, offset)

    @staticmethod
    def _call(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except _FENCED as error:
            raise Fenced(str(error)) from None
        except errors.KafkaError as error:
            raise Abortable(f"{type(error).__name__}: {error}") from None
