"""Copying with librdkafka."""

from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.integration.transactions.copiers.interface import (
    CALL_S,
    REQUEST_MS,
    SESSION_MS,
    Abortable,
    Copier,
    Fenced,
    Taken,
)

_FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.FENCED_INSTANCE_ID,
}
_QUICK: dict[str, str | int | float | bool] = {
    "socket.timeout.ms": REQUEST_MS,
    "socket.connection.setup.timeout.ms": 1_000,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 300,
    "log_level": 0,
}


class LibrdkafkaCopier(Copier):
    def open_producer(self) -> None:
        job = self.job
        servers = {"bootstrap.servers": job.bootstrap_servers, "client.id": job.name}
        self._producer = Producer(
            _QUICK
            | servers
            | {
                "transactional.id": job.name,
                "transaction.timeout.ms": job.transaction_timeout_ms,
                "linger.ms": 2,
                "request.timeout.ms": 1_000,
            }
        )
        self._call(lambda: self._producer.init_transactions(CALL_S))

    def open_consumer(self) -> None:
        job = self.job
        servers = {"bootstrap.servers": job.bootstrap_servers, "client.id": job.name}
        self._consumer = Consumer(
            _QUICK
            | servers
            | {
                "group.id": job.group,
                "group.instance.id": job.name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                # Read ahead no further than a few transactions: a copier that goes back
                # throws it away.
                "queued.min.messages": 2_000,
            }
        )
        self._consumer.subscribe([job.source])

    def close_producer(self) -> None:
        """librdkafka's has nothing of the kind."""

    def close_consumer(self) -> None:
        self._consumer.close()

    def poll(self, seconds: float, count: int) -> list[Taken]:
        taken = []
        for message in self._consumer.consume(count, timeout=seconds):
            if (error := message.error()) is not None:
                if error.code() in _FENCED:
                    raise Fenced(str(error))
                if error.fatal():
                    raise KafkaException(error)
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            taken.append(Taken(partition, offset, message.value() or b""))
        return taken

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, partition: int, value: bytes) -> None:
        self._producer.produce(self.job.target, value, partition=partition)
        self._producer.poll(0)

    def flush(self) -> None:
        if self._producer.flush(CALL_S):
            raise Abortable("not everything was written in time")

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        positions = [TopicPartition(self.job.source, offset, at) for offset, at in offsets.items()]
        group = self._consumer.consumer_group_metadata()
        self._call(lambda: self._producer.send_offsets_to_transaction(positions, group, CALL_S))

    def commit(self) -> None:
        self._call(lambda: self._producer.commit_transaction(CALL_S))

    def abort(self) -> None:
        self._call(lambda: self._producer.abort_transaction(CALL_S))

    def seek(self, offsets: Mapping[int, int]) -> None:
        assigned = {tp.partition for tp in self._consumer.assignment()}
        for partition, offset in offsets.items():
            # One that was given to another member is that one's business.
            if partition in assigned:
                self._consumer.seek(TopicPartition(self.job.source, partition, offset))

    @staticmethod
    def _call(call: Callable[[], object]) -> None:
        """Do it, again if the client says so: its transaction calls may be repeated."""
        while True:
            try:
                call()
                return
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable():
                    continue
                if error.code() in _FENCED:
                    raise Fenced(str(error)) from None
                if error.txn_requires_abort():
                    raise Abortable(str(error)) from None
                raise
