"""Access rules: the rights that an API asks for, and the answer to a request that lacks some.

A rule takes the resources that the sender has no right to out of a request, so that its handler
never sees them, and puts their error codes into the handler's response. Where a right is missing
for the request as a whole, the rule answers in the handler's place. The error codes and their
places are those of Apache Kafka 4.3. Here is what all rules have in common; the rules are
in `topic_rules`, `group_rules`, `transaction_rules` and `cluster_rules`, and
`broker/apis.py` says which API has which.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from headrace.broker.request import Denial, RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.schema import Message
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType

DENIED = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AclResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    AclResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

# Where the answer to a request has the error code of a right that is missing.
WHOLE = "the whole answer"
EACH_TOPIC = "each such topic"
EACH_PARTITION = "each partition of such a topic"
EACH_GROUP = "each such group"
EACH_RESOURCE = "each such resource"
LEFT_OUT = "is left out"


Alternative: TypeAlias = tuple[AclOperation, AclResourceType]


class NeededRight(NamedTuple):
    """A row of the authorization table: a right, and the answer to a sender without it.

    `place` is where `code` stands; without a code nothing says that the resource exists. Any of
    the `alternatives` does as well.
    """

    operation: AclOperation
    resource_type: AclResourceType
    place: str
    code: ErrorCode | None
    note: str = ""
    alternatives: tuple[Alternative, ...] = ()


Check: TypeAlias = Callable[[RequestContext, Any], Denial]


class AccessRule(NamedTuple):
    """The rights of an API, and their check; None where the handler asks for them itself."""

    rights: tuple[NeededRight, ...] = ()
    check: Check | None = None


# For everybody: requests before and for authentication, and about the sender itself.
NO_RIGHT_NEEDED = AccessRule()


def right(
    operation: AclOperation,
    resource_type: AclResourceType,
    place: str = WHOLE,
    note: str = "",
    *,
    instead: Alternative | None = None,
) -> NeededRight:
    """A row of the table, with the code that a resource of the type has."""
    code = None if place == LEFT_OUT else DENIED[resource_type]
    alternatives = () if instead is None else (instead,)
    return NeededRight(operation, resource_type, place, code, note, alternatives)


def _empty_response(context: RequestContext) -> Message:
    return context.node.apis[context.header.api_key].api.response()


def refuse_whole(context: RequestContext, code: ErrorCode) -> Message:
    """The answer of an API whose response has one error code for all."""
    response: Any = _empty_response(context)
    response.error_code = code
    if hasattr(response, "error_message"):
        response.error_message = None
    return response  # type: ignore[no-any-return]


def of_cluster(
    operation: AclOperation,
    refusal: Callable[[RequestContext, Any, ErrorCode], Message] | None = None,
    place: str = WHOLE,
) -> AccessRule:
    """A right to the cluster, without which a request is refused as a whole."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def check(context: RequestContext, request: Any) -> Denial:
        if context.may(operation, AclResourceType.CLUSTER, CLUSTER_NAME):
            return None
        if refusal is None:
            return refuse_whole(context, code)
        return refusal(context, request, code)

    return AccessRule((right(operation, AclResourceType.CLUSTER, place),), check)


def remove_denied(holder: Any, field: str, is_allowed: Callable[[Any], bool]) -> list[Any]:
    """Take the items that are not allowed out of a list of a request, and return them."""
    items = getattr(holder, field)
    if not items:
        return []
    allowed: list[Any] = []
    denied: list[Any] = []
    for item in items:
        (allowed if is_allowed(item) else denied).append(item)
    if denied:
        setattr(holder, field, allowed)
    return denied


def with_refused(
    context: RequestContext, field: str, refused: Iterable[Any], *, anything_left: bool
) -> Denial:
    """The denial that adds results to a list of the response, or answers with them alone."""
    results = list(refused)
    if not results:
        return None

    def add(response: Any) -> None:
        getattr(response, field).extend(results)

    if anything_left:
        return add
    response = _empty_response(context)
    add(response)
    return response


def with_refused_partitions(
    context: RequestContext,
    request: Any,
    denied: Iterable[Any],
    code: ErrorCode,
    topic_result: Callable[..., Any],
    partition_result: Callable[..., Any],
) -> Denial:
    """The denial of every partition of some topics, with a result of its own for each."""
    refused = []
    for topic in denied:
        partitions = [
            partition_result(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        ]
        result = topic_result(name=topic.name, partitions=partitions)
        if hasattr(result, "topic_id"):
            result.topic_id = topic.topic_id
        refused.append(result)
    return with_refused(context, "topics", refused, anything_left=bool(request.topics))


def topic_name(context: RequestContext, topic: Any) -> str | None:
    """The name of a topic of a request; None for an id that no topic has."""
    name: str = topic.topic if hasattr(topic, "topic") else topic.name
    if name:
        return name
    known = context.node.store.image.topics_by_id.get(topic.topic_id)
    return None if known is None else known.name


def may_topic(context: RequestContext, operation: AclOperation, topic: Any) -> bool:
    """Whether a sender has a right to a topic. An id of no topic is left to the handler."""
    name = topic_name(context, topic)
    return name is None or context.may(operation, AclResourceType.TOPIC, name)
