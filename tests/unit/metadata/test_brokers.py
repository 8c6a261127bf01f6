"""Registration, fencing and departure of brokers, and producer ids."""

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.brokers import (
    allocate_producer_ids,
    fence_brokers,
    register_broker,
    unregister_broker,
)
from headrace.metadata.image import EndpointImage, Image
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.metadata_records import ProducerIdsRecord
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.unit.metadata.clusters import cluster, directory_of, registration, standing

DIRECTORY = bytes([8]) * 16


def register(
    image: Image, request: BrokerRegistrationRequest, offset: int, *, has_session: bool = False
) -> CommandResult[int]:
    return register_broker(
        image,
        request,
        cluster_id="cluster",
        has_session=has_session,
        offset=offset,
        unclean_by_default=False,
    )


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    result = register(Image(), registration(1, rack="eu-1", log_dirs=[DIRECTORY]), offset=17)
    broker = Image().apply(result.records).brokers[1]
    assert result.response == broker.epoch == 17
    assert broker.endpoints == (EndpointImage("PLAINTEXT", "host-1", 9092, 0),)
    assert (broker.rack, broker.log_dirs) == ("eu-1", (DIRECTORY,))
    assert broker.fenced


def test_a_new_run_of_a_broker_gets_a_new_epoch_and_a_retry_keeps_it() -> None:
    image = cluster(1)
    retried = register(image, registration(1), offset=40)
    assert (retried.response, retried.records) == (0, ())
    restarted = register(image, registration(1, incarnation=2), offset=40)
    assert restarted.response == 40
    broker = image.apply(restarted.records).brokers[1]
    assert broker.incarnation_id == bytes([2]) * 16
    assert broker.fenced


def test_a_second_process_with_the_id_of_a_broker_that_lives_is_a_duplicate() -> None:
    image = cluster(1, topics={"a": [[1]]})
    newcomer = registration(1, incarnation=9, log_dirs=[DIRECTORY])
    with pytest.raises(KafkaError) as caught:
        register(image, newcomer, offset=40, has_session=True)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    # The same run, and a new one on a directory of the old one, need not wait.
    assert register(image, registration(1), offset=40, has_session=True).response == 0
    kept = registration(1, incarnation=9, log_dirs=[DIRECTORY, directory_of(1)])
    assert register(image, kept, offset=40, has_session=True).response == 40
    assert register(image, newcomer, offset=40).response == 40


def test_a_run_that_registers_again_keeps_how_it_stands() -> None:
    image = cluster(1, topics={"a": [[1]]})
    moved = register(image, registration(1, rack="eu-2"), offset=40)
    after = image.apply(moved.records)
    assert (after.brokers[1].rack, after.brokers[1].fenced) == ("eu-2", False)
    assert after.topics == image.topics


def test_a_new_run_leaves_every_isr_but_the_one_it_is_alone_in() -> None:
    image = cluster(1, 2, 3, topics={"a": [[1, 2, 3], [2, 1], [1], [3, 2]]})
    after = image.apply(register(image, registration(1, incarnation=9), offset=40).records)
    # Leader, leader epoch, partition epoch, ISR.
    assert standing(after, "a") == [
        (2, 1, 1, (2, 3)),
        (2, 0, 1, (2,)),
        (-1, 1, 1, (1,)),
        (3, 0, 0, (3, 2)),
    ]
    again = after.apply(register(after, registration(1, incarnation=10), offset=60).records)
    assert standing(again, "a") == standing(after, "a")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (
            BrokerRegistrationRequest(broker_id=1, cluster_id="other"),
            ErrorCode.INCONSISTENT_CLUSTER_ID,
        ),
        (
            BrokerRegistrationRequest(broker_id=1, cluster_id="cluster"),
            ErrorCode.INVALID_REGISTRATION,
        ),
        (registration(2, log_dirs=[DIRECTORY]), ErrorCode.INVALID_REGISTRATION),
    ],
    ids=["another cluster", "no listener", "a copied directory"],
)
def test_a_registration_that_cannot_be_right_is_refused(
    request_: BrokerRegistrationRequest, code: ErrorCode
) -> None:
    image = Image().apply(register(Image(), registration(1, log_dirs=[DIRECTORY]), 0).records)
    with pytest.raises(KafkaError) as caught:
        register(image, request_, offset=5)
    assert caught.value.code is code


def test_brokers_fenced_together_leave_together() -> None:
    image = cluster(1, 2, 3, topics={"a": [[1, 2, 3], [2, 3, 1], [1, 2], [3]]})
    after = image.apply(fence_brokers(image, [1, 2], unclean_by_default=False).records)
    assert [value.broker_id for value in after.brokers.values() if value.fenced] == [1, 2]
    # Whoever of the third comes back first has everything: nobody was in sync after them.
    assert standing(after, "a") == [
        (3, 1, 1, (3,)),
        (3, 1, 1, (3,)),
        (-1, 1, 1, (1, 2)),
        (3, 0, 0, (3,)),
    ]
    assert fence_brokers(after, [1, 2, 7], unclean_by_default=False).records == ()


def test_an_unregistered_broker_leads_nothing_and_is_in_no_isr() -> None:
    image = cluster(1, 2, topics={"a": [[1, 2], [1]]})
    request = UnregisterBrokerRequest(broker_id=1)
    after = image.apply(unregister_broker(image, request, unclean_by_default=False).records)
    assert set(after.brokers) == {2}
    assert standing(after, "a") == [(2, 1, 1, (2,)), (-1, 1, 1, (1,))]
    with pytest.raises(KafkaError) as caught:
        unregister_broker(after, request, unclean_by_default=False)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


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
