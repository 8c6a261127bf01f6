"""Group members without a consumer: join, sync, then a heartbeat every few seconds.

A thousand real consumers would need more machine than the measured broker.
"""

import asyncio
import itertools
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.apis import decode_response, encode_request
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headrace.protocol.schema import Message

SESSION_MS = 45_000
REBALANCE_MS = 60_000

_FIND, _JOIN, _SYNC, _HEARTBEAT = 4, 9, 5, 4


class Connection:
    """A connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()

    @classmethod
    async def open(cls, address: str) -> "Connection":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def call(self, request: Message, version: int) -> Any:
        self._writer.writelines(encode_request(request, version, next(self._numbers), "bench"))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(size)
        return decode_response(request.api_key, version, frame)[1]

    def close(self) -> None:
        self._writer.close()


class Member:
    """A member of a classic group; the leader assigns every member its own name."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self.group = group
        self._member_id = ""
        self.generation = -1
        self.joins = 0

    async def join(self) -> None:
        """Join, and rejoin as long as the group is still forming."""
        while True:
            joined = await self._connection.call(
                JoinGroupRequest(
                    group_id=self.group,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                    member_id=self._member_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
                ),
                _JOIN,
            )
            self._member_id = joined.member_id or self._member_id
            if joined.error_code == ErrorCode.NONE and await self._sync(joined):
                self.joins += 1
                return

    async def _sync(self, joined: Any) -> bool:
        self.generation = joined.generation_id
        synced = await self._connection.call(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=joined.generation_id,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    SyncGroupRequestAssignment(
                        member_id=member.member_id, assignment=member.member_id.encode()
                    )
                    for member in joined.members
                ],
            ),
            _SYNC,
        )
        return bool(
            synced.error_code == ErrorCode.NONE and synced.assignment == self._member_id.encode()
        )

    async def beat(self) -> None:
        """Send a heartbeat; rejoin if the group rebalances."""
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self._member_id
        )
        answer = await self._connection.call(request, _HEARTBEAT)
        if answer.error_code != ErrorCode.NONE:
            await self.join()


async def find_coordinator(address: str, group: str) -> None:
    """Wait for a coordinator: the first request creates `__consumer_offsets`."""
    connection = await Connection.open(address)
    while True:
        found = await connection.call(
            FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), _FIND
        )
        if found.coordinators[0].error_code == ErrorCode.NONE:
            break
        await asyncio.sleep(0.05)
    connection.close()
