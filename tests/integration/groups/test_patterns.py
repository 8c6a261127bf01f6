"""The two patterns of messaging: a queue is one group, publish-subscribe is a group for each."""

from collections import Counter
from functools import partial

import pytest

from tests.integration.clients import ConfluentClient, ToSend
from tests.integration.groups.consumers import Group, Partition, closing, wait_for, wait_settled
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

PARTITIONS: list[Partition] = [("orders", index) for index in range(6)]
RECORDS = 600


@pytest.mark.parametrize(
    "client", ["headrace", "librdkafka", "librdkafka-assigned", "kafka-python", "aiokafka"]
)
def test_one_group_shares_the_records_and_many_groups_each_get_all(
    broker: BrokerProcess, client: str
) -> None:
    """In the queue every record goes to one consumer, and every consumer gets some."""
    create_topic(broker.address, "orders", len(PARTITIONS))
    options = {"topics": ["orders"], "session_ms": 10_000, "poll_interval_ms": 20_000}
    queue = Group(broker.address, "queue", client, **options)
    subscribers = [Group(broker.address, f"reader-{n}", client, **options) for n in range(2)]
    with closing([queue, *subscribers]):
        queue.start(3)
        for group in subscribers:
            group.start()
        wait_settled([queue, *subscribers], PARTITIONS)
        sent = ConfluentClient(broker.address).send(
            "orders", [ToSend(b"%d" % n, partition=n % 6) for n in range(RECORDS)]
        )
        wanted = {("orders", partition, offset) for partition, offset in sent}
        for group in (queue, *subscribers):
            wait_for(partial(_lacks, group, wanted))
            group.close(list(group.members))
            times = Counter(record for member in group.everybody for record in member.received)
            assert times == dict.fromkeys(wanted, 1), f"{group.name} got some records twice"
    assert all(member.received for member in queue.everybody)


def _lacks(group: Group, wanted: set[tuple[str, int, int]]) -> str | None:
    missing = wanted - group.received
    return f"{group.name} lacks {len(missing)} records" if missing else None
