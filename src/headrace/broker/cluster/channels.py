"""Channels to other nodes: links to a node, to the active controller, and to brokers."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.broker.cluster.endpoints import InterBrokerListener
from headrace.broker.metadata_store import MetadataStore
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.net.addresses import Address
from headrace.net.client_connection import PLAINTEXT, ClientConnection, ClientSecurity
from headrace.protocol.apis import Api
from headrace.protocol.schema import Message
from headrace.tasks import TaskScope

# A connection to one other node, opened on use, and reopened after a failure.
#
# Responses come in the order of the requests, so requests that may wait (a long fetch) have a
# separate channel.


class RequestNotSent(HeadraceError):
    """The node cannot be reached: the request was not sent."""


class NodeChannel:
    """Requests to one node. Used on the event loop's thread only.

    Every failure is a HeadraceError, and closes the connection; the next request opens another.
    Unless it is RequestNotSent, it is unknown whether the request was carried out.
    """

    def __init__(
        self,
        address_of: Callable[[], Address | None],
        client_id: str,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._address_of = address_of
        self._client_id = client_id
        self._security = security
        self._connection: ClientConnection | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, request: Message, timeout_s: float) -> Any:
        """The response to a request, connecting included, within `timeout_s`."""
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout_s
        connection = await self._connected(timeout_s)
        try:
            return await connection.ask(request, max(due - loop.time(), 0.001))
        except asyncio.CancelledError:
            # The response is not awaited any more, and later requests should not wait for it.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if any; requests in flight fail."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _connected(self, timeout_s: float) -> ClientConnection:
        async with self._connecting:
            address = self._address_of()
            if address is None:
                raise RequestNotSent("it is not known where it is")
            known = self._connection
            if known is not None and known.is_open and known.address == address:
                return known
            self.close()
            try:
                self._connection = await ClientConnection.open(
                    address, timeout_s, client_id=self._client_id, security=self._security
                )
            except HeadraceError as error:
                raise RequestNotSent(str(error)) from error
            return self._connection


_BACKOFF_SECONDS = 0.05
# The limit of an attempt, so that a controller that hangs is given up for its successor. The lease
# to accept records must not end meanwhile, and a heartbeat is answered soon if at all.
_ATTEMPT_SECONDS = 2.0
_HEARTBEAT_SECONDS = 0.5


class ControllerChannel:
    """Requests to the active controller, which is looked up again when it moves.

    A repeatable request may reach two controllers, if the first fails before it has answered: the
    second must find it carried out, or refuse it. Each API has a connection of its own, so that no
    heartbeat waits behind the creation of a topic.
    """

    def __init__(
        self,
        *,
        is_self: Callable[[], bool],
        answer_here: Callable[[Message], Awaitable[Message]],
        address_of: Callable[[], Address | None],
        client_id: str,
        new_link: "NewLink | None" = None,
    ) -> None:
        self._new_link = new_link
        self._is_self = is_self
        self._answer_here = answer_here
        self._address_of = address_of
        self._client_id = client_id
        self._links: dict[int, NodeChannel] = {}

    async def ask(self, request: Message, timeout_s: float, *, repeatable: bool = True) -> Any:
        """The active controller's response; KafkaError if there is none within `timeout_s`.

        A request that is not `repeatable` is sent again only if it surely was not carried out.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout_s
        heartbeat = request.api_key == Api.BROKER_HEARTBEAT
        longest = _HEARTBEAT_SECONDS if heartbeat else _ATTEMPT_SECONDS
        while True:
            left = due - loop.time()
            try:
                response = await self._attempt(request, min(left, longest) if repeatable else left)
                if response.error_code != ErrorCode.NOT_CONTROLLER:
                    return response
                reason = "it moved"
            except HeadraceError as error:
                reason = str(error)
                if not repeatable and not isinstance(error, RequestNotSent):
                    raise KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT, f"it may have been done or not: {reason}"
                    ) from error
            if loop.time() + _BACKOFF_SECONDS >= due:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"no active controller could be asked: {reason}"
                )
            await asyncio.sleep(_BACKOFF_SECONDS)

    async def _attempt(self, request: Message, timeout_s: float) -> Any:
        if self._is_self():
            return await self._answer_here(request)
        link = self._links.get(request.api_key)
        if link is None:
            new_link = self._new_link or NodeChannel
            link = self._links[request.api_key] = new_link(self._address_of, self._client_id)
        return await link.ask(request, max(timeout_s, 0.001))

    def close(self) -> None:
        for link in self._links.values():
            link.close()


Item = TypeVar("Item")
NewLink: TypeAlias = Callable[[Callable[[], Address | None], str], NodeChannel]


class BrokerChannels:
    """Requests to brokers; those to this broker itself need no socket.

    Every failure is a HeadraceError. Responses of one broker come in the order of the requests, so
    each purpose has channels of its own.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        answer_here: Callable[[Message], "Message | Awaitable[Message | None] | None"],
        client_id: str,
        new_link: NewLink = NodeChannel,
    ) -> None:
        self._config = config
        self._listener = InterBrokerListener.of(config)
        self._store = store
        self._answer_here = answer_here
        self._client_id = client_id
        self._new_link = new_link
        self._links: dict[int, NodeChannel] = {}
        self._epochs: dict[int, int] = {}

    def is_self(self, broker_id: int) -> bool:
        """Whether an id is that of this broker."""
        return broker_id == self._config.node_id

    def answer_locally(self, request: Message) -> Any:
        """This broker's response: a Message, or an awaitable of a Message."""
        return self._answer_here(request)

    async def ask(self, broker_id: int, request: Message, timeout_s: float) -> Any:
        """A broker's response to a request."""
        if self.is_self(broker_id):
            answer = self.answer_locally(request)
            return answer if isinstance(answer, Message) else await answer
        link = self._links.get(broker_id)
        if link is None:
            link = self._new_link(lambda: self._address_of(broker_id), self._client_id)
            self._links[broker_id] = link
            self._epochs[broker_id] = self._epoch_of(broker_id)
        return await link.ask(request, timeout_s)

    def brokers_changed(self) -> None:
        """Close channels to brokers that are gone or were restarted: they may hang."""
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
        return self._listener.address_of(broker)


class BrokerBatches(Generic[Item]):
    """Queues of items for brokers: sent at once, or together when fewer requests are in flight.

    `send` gets the broker and up to `batch_max` items, in the order in which they came; it is
    responsible for them from then on. Up to `in_flight_max` calls of it for one broker are under
    way at once. A broker without waiting items has no task.
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
        """The number of waiting items, without those under way."""
        return sum(map(len, self._waiting.values()))

    def add(self, broker_id: int, item: Item) -> None:
        """Send an item as soon as possible."""
        if self._stopped:
            return
        waiting = self._waiting.setdefault(broker_id, deque())
        waiting.append(item)
        # Behind another item it needs no task: a task sends both, or all requests are in use.
        if len(waiting) == 1 and self._in_flight[broker_id] < self._in_flight_max:
            self._in_flight[broker_id] += 1
            self._tasks.start(self._run(broker_id), f"broker {broker_id}")

    async def stop(self) -> list[Item]:
        """Stop sending, and return the waiting items. Calls of `send` under way are cancelled."""
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
