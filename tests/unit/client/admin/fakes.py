"""An admin client of brokers in memory that can lose answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.client.admin.aio import AsyncAdmin
from headrace.errors import ErrorCode, KafkaError
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.apis import Api
from headrace.protocol.schema import Message
from tests.unit.client.fake_groups import FakeGroups
from tests.unit.client.virtual_time import Brokers, Channel

Result = TypeVar("Result")


class AdminBrokers(FakeGroups, Brokers):
    """Brokers and coordinators. Requests of the kinds in `lost` are done, but never answered."""

    def __init__(self, nodes: int = 1, *, versions: dict[int, int] | None = None) -> None:
        super().__init__(nodes, versions=versions)
        self.lost: list[type[Message]] = []
        self.controller = 1

    def _Metadata(self, node: int, request: Any) -> Any:
        answer = super()._Metadata(node, request)
        answer.controller_id = self.controller
        return answer

    async def open(self, address: Address, timeout_s: float, *, client_id: str) -> Channel:
        await asyncio.sleep(0)
        for node, known in self.nodes.items():
            if known == address and node not in self.down:
                return _LosingChannel(self, node)
        raise ConnectionFailed(address, "nothing is listening there", "start a broker")

    def admin(
        self,
        call: Callable[[AsyncAdmin], Awaitable[Result]],
        timeout_s: float = 30.0,
        **options: Any,
    ) -> Result:
        """What a call to a new admin client returns."""

        async def scenario() -> Result:
            async with AsyncAdmin.over(self.new_cluster(timeout_s, **options)) as admin:
                return await call(admin)

        return self.run(scenario())

    def asked(self, kind: type[Message]) -> list[int]:
        """The nodes that received requests of a kind, in order."""
        return [node for node, request in self.requests if isinstance(request, kind)]


class _LosingChannel(Channel):
    _brokers: AdminBrokers

    def _do(self, request: Message, version: int) -> Message | None:
        answer = super()._do(request, version)
        if type(request) in self._brokers.lost:
            self._brokers.lost.remove(type(request))
            return None
        return answer


# What brokers have that know groups by older versions of every request.
OLD_VERSIONS: dict[int, int] = {
    Api.FIND_COORDINATOR: 3,
    Api.LIST_GROUPS: 3,
    Api.DESCRIBE_GROUPS: 5,
    Api.OFFSET_FETCH: 7,
    Api.OFFSET_COMMIT: 9,
    Api.DELETE_GROUPS: 1,
}


def code_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, KafkaError), outcome
    return outcome.code
