"""Transactions that no coordinator knows of: they keep readers waiting until an admin ends them."""

from collections.abc import Callable

from tests.integration.commands import Cli
from tests.integration.transactions.conftest import SETTINGS
from tests.integration.transactions.raw import RawProducer
from tests.integration.transactions.reading import end, read_committed, stable
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

# Without verification a producer may write into a partition that it never added.
CARELESS = {**SETTINGS, "transaction.partition.verification.enable": "false"}


def test_an_admin_aborts_a_hanging_transaction(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**CARELESS)
    address = broker.address
    create_topic(address, "orders")
    committed = RawProducer(address, "committed", old=True).init()
    hanging = RawProducer(address, "hanging", old=True).init()
    committed.send("orders", b"before")
    committed.commit()
    committed.wait_until("CompleteCommit")
    start = hanging.send("orders", b"hangs", added=True)
    committed.send("orders", b"behind it")
    committed.commit()
    committed.wait_until("CompleteCommit")
    assert stable(address, "orders") == start < end(address, "orders")
    assert hanging.describe().transaction_state == "Empty"
    assert read_committed(address, "orders") == [b"before"]

    found = Cli(address).text("transactions", "find-hanging", "--max-timeout-ms", "0")
    assert "orders" in found
    where = ["--topic", "orders", "--partition", "0", "--start-offset", str(start)]
    Cli(address).run("transactions", "abort", *where, "--yes")
    assert stable(address, "orders") == end(address, "orders")
    assert read_committed(address, "orders") == [b"before", b"behind it"]


def test_an_admin_fences_a_producer_whose_transaction_is_open(broker: BrokerProcess) -> None:
    address, cli = broker.address, Cli(broker.address)
    create_topic(address, "fenced")
    producer = RawProducer(address, "careless").init()
    producer.send("fenced", b"open")
    assert "careless" in cli.text("transactions", "list", "--state", "Ongoing")
    assert "fenced" in cli.text("transactions", "describe", "careless")
    cli.text("transactions", "abort", "--transactional-id", "careless", "--yes")
    assert stable(address, "fenced") == end(address, "fenced") == 2
    assert read_committed(address, "fenced") == []
    assert "careless" not in cli.text("transactions", "list", "--state", "Ongoing")
