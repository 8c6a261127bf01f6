"""A request as its handler sees it.

A handler is a function `(context, request) -> response`. It returns the response, or an awaitable
of it when it must wait, or None when the request wants no answer (Produce with acks=0).
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from headrace.broker.node import Node
from headrace.net.connection import Connection
from headrace.protocol.apis import RequestHeader
from headrace.protocol.messages.api_versions import ApiVersion
from headrace.protocol.schema import Message


class RequestContext:
    """One request: who is asked, the header it came with, and the address it came from.

    `listener` names where it came in, and `announced` are the APIs that may be asked there.
    `connection` is None for requests of this node's own and for those that another node passed on.
    """

    __slots__ = ("announced", "connection", "header", "host", "listener", "node")

    def __init__(
        self,
        node: Node,
        header: RequestHeader,
        host: str,
        listener: str | None = None,
        announced: list[ApiVersion] | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.node = node
        self.header = header
        self.host = host
        self.listener = listener
        self.announced = announced or []
        self.connection = connection

    @property
    def version(self) -> int:
        return self.header.api_version


Answer: TypeAlias = Message | Awaitable[Message | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any], Answer]
