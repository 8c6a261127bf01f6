"""Whoever has lost its place, its transaction or its time, can write nothing more."""

import time
from collections.abc import Callable

import pytest

from headrace.errors import ErrorCode
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.transactions.copiers import COPIERS
from tests.integration.transactions.copiers.interface import Fenced, Job
from tests.integration.transactions.raw import RawProducer, refusal
from tests.integration.transactions.reading import (
    end,
    group_offsets,
    read_committed,
    stable,
)
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}


def test_a_zombie_can_do_nothing(broker: BrokerProcess, old: bool) -> None:
    topic = f"zombie-{old}"
    create_topic(broker.address, topic, 2)
    zombie = RawProducer(broker.address, topic, old=old).init()
    zombie.send(topic, b"zombie")
    successor = RawProducer(broker.address, topic, old=old).init()
    assert successor.producer_id == zombie.producer_id
    assert successor.epoch > zombie.epoch
    # Its transaction was aborted before the successor got its epoch.
    assert stable(broker.address, topic) == end(broker.address, topic) == 2
    attempts: list[Callable[[], object]] = [
        lambda: zombie.send(topic, b"late"),
        lambda: zombie.send(topic, b"elsewhere", partition=1),
        lambda: zombie.send_offsets("group", topic, {0: 1}),
        lambda: zombie.end(committed=True),
        lambda: zombie.end(committed=False),
    ]
    for attempt in attempts:
        assert refusal(attempt) in FENCED
    successor.send(topic, b"successor")
    for attempt in attempts:
        assert refusal(attempt) in FENCED
    successor.commit()
    successor.wait_until("CompleteCommit")
    assert read_committed(broker.address, topic) == [b"successor"]
    assert (end(broker.address, topic), end(broker.address, topic, 1)) == (4, 0)


def test_a_late_write_falls_into_no_transaction(broker: BrokerProcess) -> None:
    """What version 1 let happen: a write that was under way arrives when the next one is open."""
    topic = "late"
    create_topic(broker.address, topic)
    producer = RawProducer(broker.address, topic).init()
    producer.send(topic, b"first")
    late = RawProducer(broker.address, topic)
    late.producer_id, late.epoch = producer.producer_id, producer.epoch
    late._sequences = dict(producer._sequences)
    producer.abort()
    assert producer.epoch == late.epoch + 1
    assert refusal(lambda: late.send(topic, b"late")) in FENCED
    producer.send(topic, b"second")
    assert refusal(lambda: late.send(topic, b"late")) in FENCED
    producer.commit()
    producer.wait_until("CompleteCommit")
    assert read_committed(broker.address, topic) == [b"second"]


def test_an_old_producer_writes_only_where_it_has_said_so(broker: BrokerProcess) -> None:
    topic = "unsaid"
    create_topic(broker.address, topic, 2)
    producer = RawProducer(broker.address, topic, old=True).init()
    assert (
        refusal(lambda: producer.send(topic, b"in none", added=True)) is ErrorCode.INVALID_TXN_STATE
    )
    producer.send(topic, b"said")
    assert (
        refusal(lambda: producer.send(topic, b"unsaid", partition=1, added=True))
        is ErrorCode.INVALID_TXN_STATE
    )
    producer.commit()
    producer.wait_until("CompleteCommit")
    # As late as the one above, and to a partition that was part of the last transaction.
    assert refusal(lambda: producer.send(topic, b"late", added=True)) is ErrorCode.INVALID_TXN_STATE
    assert read_committed(broker.address, topic) == [b"said"]
    assert end(broker.address, topic, 1) == 0


def test_a_transaction_that_takes_too_long_is_aborted(broker: BrokerProcess, old: bool) -> None:
    topic = f"slow-{old}"
    create_topic(broker.address, topic)
    producer = RawProducer(broker.address, topic, old=old, timeout_ms=int(scaled(300))).init()
    producer.send(topic, b"slow")
    assert stable(broker.address, topic) == 0
    producer.wait_until("CompleteAbort")
    assert stable(broker.address, topic) == end(broker.address, topic) == 2
    assert refusal(lambda: producer.send(topic, b"late")) in FENCED
    code = refusal(lambda: producer.end(committed=True))
    if old:
        assert code in FENCED
    else:
        # It may still abort, as Kafka lets it: what it cannot do is commit.
        assert code is ErrorCode.INVALID_TXN_STATE
        producer.end(committed=False)
    producer.init()
    producer.send(topic, b"again")
    producer.commit()
    producer.wait_until("CompleteCommit")
    assert read_committed(broker.address, topic) == [b"again"]


def test_offsets_hold_once_their_transaction_is_committed(broker: BrokerProcess, old: bool) -> None:
    topic = f"offsets-{old}"
    create_topic(broker.address, topic)
    address = broker.address
    producer = RawProducer(address, topic, old=old).init()

    def found(*, stable: bool = False) -> tuple[int, int]:
        return group_offsets(address, topic, topic, 0, stable=stable)[0]

    producer.send_offsets(topic, topic, {0: 5})
    assert found() == (0, -1)
    assert found(stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    producer.abort()
    producer.wait_until("CompleteAbort")
    assert found(stable=True) == (0, -1)
    producer.send_offsets(topic, topic, {0: 7})
    producer.commit()
    producer.wait_until("CompleteCommit")
    assert found() == found(stable=True) == (0, 7)
    producer.send_offsets(topic, topic, {0: 9})
    RawProducer(address, topic, old=old).init()
    assert found(stable=True) == (0, 7)


@pytest.mark.parametrize("client", COPIERS)
def test_a_zombie_of_every_client_learns_that_it_is_one(broker: BrokerProcess, client: str) -> None:
    topic = f"zombie-{client}"
    create_topic(broker.address, topic)
    job = Job(
        bootstrap_servers=broker.address,
        source=topic,
        target=topic,
        group=topic,
        name=topic,
        transaction_timeout_ms=10_000,
    )
    zombie, successor = COPIERS[client](job), COPIERS[client](job)
    zombie.open_producer()
    zombie.begin()
    zombie.send(0, b"zombie")
    zombie.flush()
    successor.open_producer()
    with pytest.raises(Fenced):
        zombie.commit()
    successor.begin()
    successor.send(0, b"successor")
    successor.commit()
    deadline = Deadline(10)
    while read_committed(broker.address, topic) != [b"successor"]:
        assert not deadline.has_passed, read_committed(broker.address, topic)
        time.sleep(0.05)
    for entry in (zombie, successor):
        entry.close_producer()
