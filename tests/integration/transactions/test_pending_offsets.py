"""Offsets of a transaction that is open: no crash makes them hold, and none forgets them."""

from headrace.errors import ErrorCode
from tests.integration.transactions.raw import RawProducer
from tests.integration.transactions.reading import group_offsets
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)


def test_offsets_outlive_a_crash_and_hold_after_their_transaction(
    broker: BrokerProcess, old: bool
) -> None:
    topic = f"pending-{old}"
    create_topic(broker.address, topic, partitions=3)
    settled, lasting, given_up = (
        RawProducer(broker.address, f"{topic}/{name}", old=old).init()
        for name in ("settled", "lasting", "given up")
    )
    settled.send_offsets(topic, topic, {0: 10, 1: 11})
    settled.commit()
    settled.wait_until("CompleteCommit")
    lasting.send_offsets(topic, topic, {1: 21})
    given_up.send_offsets(topic, topic, {2: 32})
    held = {0: (0, 10), 1: (0, 11), 2: (0, -1)}
    stable = {0: (0, 10), 1: UNSTABLE, 2: UNSTABLE}
    assert group_offsets(broker.address, topic, topic, 0, 1, 2) == held
    assert group_offsets(broker.address, topic, topic, 0, 1, 2, stable=True) == stable
    broker.kill()
    broker.start()
    assert lasting.brokers.coordinator(topic, kind=0)
    assert group_offsets(broker.address, topic, topic, 0, 1, 2) == held
    assert group_offsets(broker.address, topic, topic, 0, 1, 2, stable=True) == stable
    # Producers go on where they were.
    lasting.send_offsets(topic, topic, {1: 22})
    lasting.commit()
    given_up.abort()
    lasting.wait_until("CompleteCommit")
    given_up.wait_until("CompleteAbort")
    held = {0: (0, 10), 1: (0, 22), 2: (0, -1)}
    assert group_offsets(broker.address, topic, topic, 0, 1, 2, stable=True) == held
