"""A request as its handler sees it, and the rights of its sender.

A handler is a function `(context, request) -> response`. It returns the response, or an awaitable
of it when it must wait, or None when the request wants no answer (Produce with acks=0).
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.broker.node import Node
from headrace.net.server import ServerConnection
from headrace.protocol.apis import RequestHeader
from headrace.protocol.messages.api_versions import ApiVersion
from headrace.protocol.schema import Message
from headrace.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    AclOperation,
    AclResourceType,
    operation_bits,
)
from headrace.security.authorization import (
    ALLOW_ALL,
    ANONYMOUS,
    Authorizer,
    Decision,
    Principal,
    Right,
)

if TYPE_CHECKING:
    from headrace.broker.apis import ServedApi

# Of a request that is to be answered by others than its handler: the answer in its place, or the
# additions to its answer. None if everything is allowed.
Denial: TypeAlias = Message | Callable[[Any], None] | None


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

    def may(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Whether the sender has a right that the request needs; the audit log notes it."""
        if self.authorizer is ALLOW_ALL:
            return True
        right = Right(operation, resource_type, name)
        decision = self.authorizer.decide(self.principal, self.host, right)
        self._note(right, decision)
        return decision.allowed

    def sees(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """As `may`, of a right that the request only has an advantage of: nothing is noted."""
        if self.authorizer is ALLOW_ALL:
            return True
        right = Right(operation, resource_type, name)
        return self.authorizer.decide(self.principal, self.host, right).allowed

    def may_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Whether the sender has the right to at least one resource of a type."""
        if self.authorizer is ALLOW_ALL:
            return True
        decision = self.authorizer.decide_any(self.principal, self.host, operation, resource_type)
        self._note(Right(operation, resource_type, "any"), decision)
        return decision.allowed

    def operations_on(self, resource_type: AclResourceType, name: str) -> int:
        """The operations that the sender may do on a resource, as a bit field of responses."""
        operations = OPERATIONS_OF[resource_type]
        return operation_bits(
            tuple(
                operation for operation in operations if self.sees(operation, resource_type, name)
            )
        )

    def operations_on_cluster(self) -> int:
        """As `operations_on`, of the cluster; none for a sender that may not describe it."""
        cluster = AclResourceType.CLUSTER
        if not self.sees(AclOperation.DESCRIBE, cluster, CLUSTER_NAME):
            return 0
        return self.operations_on(cluster, CLUSTER_NAME)

    def renew_authorizer(self) -> None:
        """Have a request that has waited judged by the ACLs of now."""
        if self.authorizer is not ALLOW_ALL:
            self.authorizer = self.node.authorizer

    def _note(self, right: Right, decision: Decision) -> None:
        audit = self.node.audit
        if audit is not None:
            audit.note(self, right, decision)


Answer: TypeAlias = Message | Awaitable[Message | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any], Answer]


def answer(row: "ServedApi", context: RequestContext, request: Message) -> Answer:
    """The answer to a request: that of its handler, as far as the authorizer allows."""
    if context.authorizer is ALLOW_ALL:
        return row.handler(context, request)
    check = row.access.check
    verdict = None if check is None else check(context, request)
    if verdict is None:
        return row.handler(context, request)
    if isinstance(verdict, Message):
        return verdict
    answered = row.handler(context, request)
    if answered is None or isinstance(answered, Message):
        verdict(answered)
        return answered
    return _add_later(answered, verdict)


async def _add_later(
    pending: Awaitable[Message | None], add: Callable[[Any], None]
) -> Message | None:
    response = await pending
    add(response)
    return response
