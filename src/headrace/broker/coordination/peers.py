"""What coordinators and leaders of partitions ask of each other, broker by broker."""

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.broker.cluster.endpoints import endpoint_of
from headrace.broker.cluster.link import Link
from headrace.broker.metadata_store import MetadataStore
from headrace.config import BrokerConfig
from headrace.net.addresses import Address
from headrace.protocol.schema import Message
from headrace.tasks import TaskScope

Item = TypeVar("Item")
NewLink: TypeAlias = Callable[[Callable[[], Address | None], str], Link]


class Peers:
    """Requests to brokers, this one included, which is asked without a socket.

    Every failure is a HeadraceError. Answers of one broker come in the order of the requests, so
    each purpose has peers of its own.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        answer_here: Callable[[Message], "Message | Awaitable[Message | None] | None"],
        client_id: str,
        new_link: NewLink = Link,
    ) -> None:
        self._config = config
        self._store = store
        self._answer_here = answer_here
        self._client_id = client_id
        self._new_link = new_link
        self._links: dict[int, Link] = {}
        self._epochs: dict[int, int] = {}

    def is_here(self, broker_id: int) -> bool:
        """Whether a broker is this one."""
        return broker_id == self._config.node_id

    def ask_here(self, request: Message) -> Any:
        """This broker's answer: a Message, or an awaitable of one that has to be waited for."""
        return self._answer_here(request)

    async def ask(self, broker_id: int, request: Message, timeout_s: float) -> Any:
        """A broker's answer to a request."""
        if self.is_here(broker_id):
            answer = self.ask_here(request)
            return answer if isinstance(answer, Message) else await answer
        link = self._links.get(broker_id)
        if link is None:
            link = self._new_link(lambda: self._address_of(broker_id), self._client_id)
            self._links[broker_id] = link
            self._epochs[broker_id] = self._epoch_of(broker_id)
        return await link.ask(request, timeout_s)

    def brokers_changed(self) -> None:
        """Wait no more for brokers that are gone, or were started again: they may be silent."""
        for broker_id, link in tuple(self._links.items()):
            epoch = self._epoch_of(broker_id)
            if epoch != self._epochs[broker_id]:
                self._epochs[broker_id] = epoch
                link.close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _epoch_of(self, broker_id: int) -> int:
        broker = self._store.image.brokers.get(broker_id)
        return -1 if broker is None or broker.fenced else broker.epoch

    def _address_of(self, broker_id: int) -> Address | None:
        broker = self._store.image.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return None
        endpoint = endpoint_of(broker, self._config.inter_broker_listener_name)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)


class Outboxes(Generic[Item]):
    """Items for each broker: sent at once, or together when fewer requests are in flight.

    `send` gets the broker and up to `batch_max` items, in the order in which they came; it answers
    for all that happens to them. Up to `in_flight_max` calls of it for one broker are under way at
    once. A broker that nothing waits for has no task.
    """

    def __init__(
        self,
        send: Callable[[int, list[Item]], Awaitable[None]],
        *,
        batch_max: int,
        in_flight_max: int = 1,
    ) -> None:
        self._send = send
        self._batch_max = batch_max
        self._in_flight_max = in_flight_max
        self._waiting: dict[int, deque[Item]] = {}
        self._in_flight: Counter[int] = Counter()
        self._tasks = TaskScope("requests to brokers")
        self._stopped = False

    def __len__(self) -> int:
        """How many items wait; those under way do not."""
        return sum(map(len, self._waiting.values()))

    def add(self, broker_id: int, item: Item) -> None:
        """Send an item as soon as may be."""
        if self._stopped:
            return
        waiting = self._waiting.setdefault(broker_id, deque())
        waiting.append(item)
        # Behind another item it needs no task: that one's takes both, or all requests are in use.
        if len(waiting) == 1 and self._in_flight[broker_id] < self._in_flight_max:
            self._in_flight[broker_id] += 1
            self._tasks.start(self._run(broker_id), f"broker {broker_id}")

    async def stop(self) -> list[Item]:
        """Send nothing any more; returns what waited. `send` is cancelled where it is under way."""
        self._stopped = True
        left = [item for waiting in self._waiting.values() for item in waiting]
        self._waiting.clear()
        await self._tasks.close()
        return left

    async def _run(self, broker_id: int) -> None:
        try:
            while (waiting := self._waiting.get(broker_id)) and not self._stopped:
                count = min(len(waiting), self._batch_max)
                items = [waiting.popleft() for _ in range(count)]
                if not waiting:
                    del self._waiting[broker_id]
                await self._send(broker_id, items)
        finally:
            self._in_flight[broker_id] -= 1
            if not self._in_flight[broker_id]:
                del self._in_flight[broker_id]
