"""How brokers ask each other, and this one itself."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from headrace.broker.cluster.channels import BrokerBatches, BrokerChannels, NodeChannel
from headrace.config import BrokerConfig
from headrace.metadata.image import Image
from headrace.net.addresses import Address
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.schema import Message
from tests.unit.broker.coordinating import Store, on_loop
from tests.unit.broker.handling import LEADS
from tests.unit.broker.handling import image_of as three_brokers

REQUEST = EndTxnRequest()


class FakeLink:
    """A way that leads to an address, if there is one."""

    def __init__(self, address_of: Callable[[], Address | None], client_id: str) -> None:
        self.address_of = address_of
        self.client_id = client_id
        self.closed = 0

    async def ask(self, request: Message, timeout_s: float) -> Message:
        return EndTxnResponse(producer_id=2)

    def close(self) -> None:
        self.closed += 1


class Setting:
    """Broker 1 of three."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.store = Store()
        self.store.image = three_brokers(LEADS)
        self.peers = BrokerChannels(
            BrokerConfig(node_id=1), self.store.as_store, self._here, "test", self._link
        )

    def _link(self, address_of: Callable[[], Address | None], client_id: str) -> NodeChannel:
        self.links.append(FakeLink(address_of, client_id))
        return cast("NodeChannel", self.links[-1])

    async def _here(self, request: Message) -> Message:
        return EndTxnResponse(producer_id=1)

    def change(self, broker_id: int, **changes: Any) -> None:
        image = self.store.image
        brokers = dict(image.brokers)
        brokers[broker_id] = replace(brokers[broker_id], **changes)
        self.store.image = replace(image, brokers=brokers)
        self.peers.brokers_changed()


def test_this_broker_is_asked_without_a_way_to_it() -> None:
    async def test() -> None:
        setting = Setting()
        answer = await setting.peers.ask(1, REQUEST, 1.0)
        assert answer.producer_id == 1
        assert not setting.links

    on_loop(test)


def test_each_broker_has_one_way_to_where_it_is() -> None:
    async def test() -> None:
        setting = Setting()
        for broker_id in (2, 3, 2):
            assert (await setting.peers.ask(broker_id, REQUEST, 1.0)).producer_id == 2
        found = [link.address_of() for link in setting.links]
        assert found == [Address("10.0.0.2", 9092), Address("10.0.0.3", 9092)]
        setting.peers.close()
        assert [link.closed for link in setting.links] == [1, 1]

    on_loop(test)


@pytest.mark.parametrize("change", [{"fenced": True}, {"epoch": 21}])
def test_brokers_that_are_gone_or_new_are_not_waited_for(change: dict[str, Any]) -> None:
    async def test() -> None:
        setting = Setting()
        for broker_id in (2, 3):
            await setting.peers.ask(broker_id, REQUEST, 1.0)
        setting.change(2, **change)
        setting.change(2, **change)
        assert [link.closed for link in setting.links] == [1, 0]
        assert (setting.links[0].address_of() is None) == ("fenced" in change)

    on_loop(test)


def test_a_broker_that_is_not_known_is_nowhere() -> None:
    async def test() -> None:
        setting = Setting()
        setting.store.image = Image()
        await setting.peers.ask(9, REQUEST, 1.0)
        assert setting.links[0].address_of() is None

    on_loop(test)


def test_a_batch_has_no_more_items_than_it_may_and_they_stay_in_order() -> None:
    async def test() -> None:
        sent: list[tuple[int, list[int]]] = []

        async def send(broker_id: int, items: list[int]) -> None:
            sent.append((broker_id, items))
            await asyncio.sleep(0.01)

        outboxes: BrokerBatches[int] = BrokerBatches(send, batch_max=3)
        for number in range(7):
            outboxes.add(1, number)
        outboxes.add(2, 7)
        assert len(outboxes) == 8
        await asyncio.sleep(1)
        assert sent == [(1, [0, 1, 2]), (2, [7]), (1, [3, 4, 5]), (1, [6])]
        assert len(outboxes) == 0
        assert len(asyncio.all_tasks()) == 1  # Nothing waits, so nobody waits for it.
        outboxes.add(1, 8)
        await asyncio.sleep(1)
        assert sent[-1] == (1, [8])

    on_loop(test)


def test_a_broker_has_no_more_requests_in_flight_than_it_may() -> None:
    async def test() -> None:
        sent: list[list[int]] = []
        answers = [asyncio.Event() for _ in range(4)]

        async def send(broker_id: int, items: list[int]) -> None:
            answer = answers[len(sent)]
            sent.append(items)
            await answer.wait()

        outboxes: BrokerBatches[int] = BrokerBatches(send, batch_max=3, in_flight_max=2)
        outboxes.add(1, 0)
        outboxes.add(1, 1)
        for number in range(2, 5):
            await asyncio.sleep(0.01)
            outboxes.add(1, number)
        await asyncio.sleep(0.01)
        # What came in one turn of the loop goes together.
        assert sent == [[0, 1], [2]]
        assert len(outboxes) == 2
        # They may end in any order.
        answers[1].set()
        await asyncio.sleep(0.01)
        assert sent == [[0, 1], [2], [3, 4]]
        outboxes.add(1, 5)
        answers[0].set()
        await asyncio.sleep(0.01)
        assert sent[3:] == [[5]]
        for answer in answers:
            answer.set()
        await asyncio.sleep(0.01)
        assert len(outboxes) == 0
        assert len(asyncio.all_tasks()) == 1

    on_loop(test)


def test_a_request_that_finds_its_items_sent_by_another_is_not_made() -> None:
    async def test() -> None:
        sent: list[list[int]] = []
        answered = asyncio.Event()

        async def send(broker_id: int, items: list[int]) -> None:
            sent.append(items)
            if len(sent) == 1:
                await answered.wait()

        outboxes: BrokerBatches[int] = BrokerBatches(send, batch_max=3, in_flight_max=2)
        outboxes.add(1, 0)
        await asyncio.sleep(0.01)
        # The first request ends in the turn in which the next item comes, and takes it along.
        answered.set()
        await asyncio.sleep(0)
        outboxes.add(1, 1)
        await asyncio.sleep(0.01)
        assert sent == [[0], [1]]
        outboxes.add(1, 2)
        await asyncio.sleep(0.01)
        assert sent == [[0], [1], [2]]
        assert len(asyncio.all_tasks()) == 1

    on_loop(test)


def test_what_waits_at_a_stop_is_given_back() -> None:
    async def test() -> None:
        cancelled: list[list[int]] = []

        async def send(broker_id: int, items: list[int]) -> None:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                cancelled.append(items)
                raise

        outboxes: BrokerBatches[int] = BrokerBatches(send, batch_max=1)
        outboxes.add(1, 1)
        await asyncio.sleep(0.01)
        outboxes.add(1, 2)
        outboxes.add(2, 3)
        assert await outboxes.stop() == [2, 3]
        assert cancelled == [[1]]
        outboxes.add(1, 4)
        assert len(outboxes) == 0
        assert len(asyncio.all_tasks()) == 1

    on_loop(test)
