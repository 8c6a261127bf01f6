"""A request as its handler sees it, and the rights that it needs.

A handler is a function `(context, request) -> response`. It returns the response, or an awaitable
of it when it must wait, or None when the request wants no answer (Produce with acks=0).
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headrace.broker.node import Node
from headrace.errors import ErrorCode, ProtocolError
from headrace.net.server import ServerConnection
from headrace.protocol.apis import Api, RequestHeader
from headrace.protocol.messages.api_versions import ApiVersion
from headrace.protocol.schema import Message
from headrace.security.acls import AclOperation, AclResourceType
from headrace.security.authorization import (
    ALLOW_ALL,
    ANONYMOUS,
    Authorizer,
    Principal,
    Right,
)

if TYPE_CHECKING:
    from headrace.broker.apis import ServedApi

_DENIED = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class AccessDenied(ProtocolError):
    """A request whose sender lacks a right, and whose response has no field for an error."""


class Access(NamedTuple):
    """Rights that the requests of an API need: an operation on each resource named.

    `names` are none where a request does not need the right, as a consumer's Fetch does not need
    that of a follower.
    """

    operation: AclOperation
    resource_type: AclResourceType
    names: Callable[["RequestContext", Any], Iterable[str]]


class RequestContext:
    """A request without its body: the node that answers it, its header, its sender's address.

    `listener` is the name of the listener it came in at, `announced` are the APIs served there.
    `connection` is None for requests of this node's own and for those that another node passed on.
    `arrived_s` is when its bytes were received, by the node's monotonic clock.
    """

    __slots__ = (
        "announced",
        "arrived_s",
        "authorizer",
        "connection",
        "header",
        "host",
        "listener",
        "node",
        "principal",
    )

    def __init__(
        self,
        node: Node,
        header: RequestHeader,
        host: str,
        listener: str | None = None,
        announced: list[ApiVersion] | None = None,
        connection: ServerConnection | None = None,
        principal: Principal = ANONYMOUS,
        authorizer: Authorizer = ALLOW_ALL,
        arrived_s: float = 0.0,
    ) -> None:
        self.node = node
        self.header = header
        self.host = host
        self.listener = listener
        self.announced = announced or []
        self.connection = connection
        self.principal = principal
        self.authorizer = authorizer
        self.arrived_s = arrived_s

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        return self.header.client_id

    def allowed(self, resource_type: AclResourceType, names: Iterable[str]) -> list[str]:
        """The names of resources for which the sender has the right that the API needs."""
        if self.authorizer is ALLOW_ALL:
            return list(names)
        [access] = [
            access
            for access in self.node.apis[self.header.api_key].access
            if access.resource_type is resource_type
        ]
        rights = (Right(access.operation, resource_type, name) for name in names)
        return [right.name for right in rights if self._allows(right)]

    def missing_right(self, request: Message, access: Iterable[Access]) -> Right | None:
        """The first right that a request needs and its sender does not have."""
        for operation, resource_type, names in access:
            for name in names(self, request):
                right = Right(operation, resource_type, name)
                if not self._allows(right):
                    return right
        return None

    def _allows(self, right: Right) -> bool:
        return self.authorizer.allows(self.principal, self.host, right)


Answer: TypeAlias = Message | Awaitable[Message | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any], Answer]


def answer(row: "ServedApi", context: RequestContext, request: Message) -> Answer:
    """The answer to a request: that of its handler, if the authorizer allows the request."""
    if context.authorizer is not ALLOW_ALL:
        missing = context.missing_right(request, row.access)
        if missing is not None:
            return _refusal(row.api, context, missing)
    return row.handler(context, request)


def _refusal(api: Api, context: RequestContext, missing: Right) -> Message:
    """The answer to a request without a right; AccessDenied where it has no error field.

    Unlike Kafka: one resource that is denied has the whole request denied.
    """
    field = api.response.__specs__.get("error_code")
    if field is None or not field.versions[0] <= context.version <= field.versions[1]:
        raise AccessDenied(
            f"{context.principal} has no right to {missing}, which {api.name} needs;"
            " grant it, or connect as another principal"
        )
    response = api.response()
    setattr(response, "error_code", _DENIED[missing.resource_type])  # noqa: B010 - of many classes
    return response
