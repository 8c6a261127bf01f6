"""Changes of ACLs, roles, quotas, users and tokens: refused while a node cannot read their records.

A node of an older version stops at them, broker or controller. Brokers have registered what they
read; controllers that are no brokers are asked, and only before the first such record: an older one
has stopped where there are some, and a controller that is down must not hold up a revoked right.
"""

from collections.abc import Callable
from typing import TypeVar

from headrace.broker.node import Node
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult
from headrace.protocol.apis import Api

Response = TypeVar("Response")

# Every version that can read the records serves this API at every listener.
_SERVED_WITH_SECURITY = Api.CREATE_ACLS


async def submit_security_change(
    node: Node, command: Callable[[Image], CommandResult[Response]]
) -> Response:
    """Submit a command that writes records of security; KafkaError if a node cannot read them."""
    await _check_controllers(node)

    def checked(image: Image, _: int) -> CommandResult[Response]:
        image.require_security_records()
        return command(image)

    return await node.store.submit(checked)


async def _check_controllers(node: Node) -> None:
    image = node.store.image
    if image.has_security_records or not node.store.is_active:
        return
    for voter in node.quorum.voters:
        if voter.node_id == node.node_id or voter.node_id in image.brokers:
            continue
        served = await node.quorum.served_apis_of(voter.node_id)
        if served is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"controller {voter.node_id} does not answer whether it can read ACLs, roles,"
                " quotas, users and tokens",
                advice="start it, or remove it from the voters",
            )
        if _SERVED_WITH_SECURITY not in served:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"controller {voter.node_id} has a version of headrace that cannot read ACLs,"
                " roles, quotas, users and tokens, and would stop",
                advice="upgrade it first",
            )
