"""Feature levels of a running broker, and what clients make of them."""

from pathlib import Path

from headrace import Admin, Producer, TopicPartition
from tests.support import BrokerProcess

TOPIC = "orders"


def levels(address: str) -> dict[str, int]:
    with Admin(bootstrap_servers=address) as admin:
        found = admin.describe_features().features
    return {name: entry.level for name, entry in found.items()}


def producer_epochs(address: str) -> list[int]:
    """The epoch that a partition knows a producer by, after each of three transactions."""
    epochs = []
    with (
        Admin(bootstrap_servers=address) as admin,
        Producer(bootstrap_servers=address, transactional_id="till") as producer,
    ):
        partition = TopicPartition(TOPIC, 0)
        for number in range(3):
            with producer.transaction():
                producer.send(TOPIC, f"{number}")
            [state] = admin.describe_producers([partition])[partition]
            epochs.append(state.producer_epoch)
    return epochs


def test_clients_work_by_the_level_of_transactions(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Admin(bootstrap_servers=broker.address) as admin:
            admin.create_topic(TOPIC)
            assert levels(broker.address) == {
                "eligible.leader.replicas.version": 1,
                "group.version": 1,
                "kraft.version": 0,
                "metadata.version": 30,
                "transaction.version": 2,
            }
            admin.update_features({"transaction.version": 1}, downgrade=True)
            admin.update_features({"kraft.version": 1})
        assert len(set(producer_epochs(broker.address))) == 1
        broker.kill()
        broker.restart()
        assert levels(broker.address) == {
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "kraft.version": 1,
            "metadata.version": 30,
            "transaction.version": 1,
        }
        with Admin(bootstrap_servers=broker.address) as admin:
            admin.update_features({"transaction.version": 2})
        # From version 2 on each transaction has an epoch of its own (KIP-890).
        first, *_, last = producer_epochs(broker.address)
        assert last > first
