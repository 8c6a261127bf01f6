"""Five batches in flight, the first of which is refused: they are written in order (KIP-890)."""

from typing import Any

import confluent_kafka
import pytest

from headrace.broker.replication.partition import Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.testing import Broker
from headrace.testing.time_limits import scaled
from tests.integration.wire import read_all

BATCHES = 50


def test_librdkafka_writes_all_when_its_first_batch_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = [KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "for a moment")]
    told: list[Any] = []

    with Broker(in_process=True) as broker:
        topic = broker.create_topic()
        check = Partition.check_in_sync

        def refuse_once(partition: Partition) -> None:
            if partition.name.topic == topic and refusals:
                raise refusals.pop()
            check(partition)

        monkeypatch.setattr(Partition, "check_in_sync", refuse_once)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "batch.num.messages": 1,
                "linger.ms": 0,
            }
        )
        for number in range(BATCHES):
            producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(scaled(30)) == 0
        assert (told, refusals) == ([None] * BATCHES, [])
        values = [record.value for record in read_all(broker.bootstrap_servers, topic)]
    assert values == [b"%d" % number for number in range(BATCHES)]
