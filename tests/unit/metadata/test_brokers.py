"""Broker registration and producer ids."""

import pytest

from headrace.config import Listener
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.controller import Result, allocate_producer_ids, register_broker
from headrace.metadata.image import Endpoint, Image
from headrace.protocol.messages.metadata_records import ProducerIdsRecord
from tests.unit.metadata.clusters import cluster


def register(image: Image, incarnation: int, offset: int) -> Result[int]:
    return register_broker(
        image,
        broker_id=1,
        incarnation_id=bytes([incarnation]) * 16,
        endpoints=[Listener("PLAINTEXT", "::1", 9092)],
        rack="eu-1",
        log_dirs=[bytes([8]) * 16],
        offset=offset,
    )


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    result = register(Image(), 1, offset=17)
    broker = Image().apply(result.records).brokers[1]
    assert result.response == broker.epoch == 17
    assert broker.endpoints == (Endpoint("PLAINTEXT", "::1", 9092, 0),)
    assert (broker.rack, broker.log_dirs) == ("eu-1", (bytes([8]) * 16,))
    assert broker.is_active


def test_a_new_run_of_a_broker_gets_a_new_epoch_and_a_retry_keeps_it() -> None:
    image = Image().apply(register(Image(), 1, offset=17).records)
    assert register(image, 1, offset=40).response == 17
    restarted = register(image, 2, offset=40)
    assert restarted.response == 40
    assert image.apply(restarted.records).brokers[1].incarnation_id == bytes([2]) * 16


def test_producer_ids_are_given_out_in_blocks_and_only_once() -> None:
    image = cluster(1, 2)
    first_ids = []
    for broker_id in (1, 2, 1):
        epoch = image.brokers[broker_id].epoch
        result = allocate_producer_ids(image, broker_id=broker_id, broker_epoch=epoch)
        assert result.response.size == 1000
        first_ids.append(result.response.first_id)
        image = image.apply(result.records)
    assert first_ids == [0, 1000, 2000]
    assert image.next_producer_id == 3000


@pytest.mark.parametrize(
    ("broker_id", "epoch", "code"),
    [
        (9, 0, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (1, 1, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_a_broker_that_is_not_who_it_was_gets_no_producer_ids(
    broker_id: int, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as caught:
        allocate_producer_ids(cluster(1), broker_id=broker_id, broker_epoch=epoch)
    assert caught.value.code is code


def test_producer_ids_end_before_they_would_wrap() -> None:
    last = cluster(1).apply([ProducerIdsRecord(next_producer_id=2**63 - 1 - 1000)])
    result = allocate_producer_ids(last, broker_id=1, broker_epoch=0)
    spent = last.apply(result.records)
    with pytest.raises(KafkaError, match="every producer id has been given out"):
        allocate_producer_ids(spent, broker_id=1, broker_epoch=0)
