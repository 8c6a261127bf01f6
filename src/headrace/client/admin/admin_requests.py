"""Admin requests about several subjects, each with its own outcome.

Rule: reads, and commands that do no harm when repeated, are retried after retriable errors. Any
other command is sent again only if nothing was sent, or if the response says that nothing was done:
a lost response does not say whether the change was made.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.client.admin.arguments import INT32_MAX
from headrace.client.cluster import ClusterClient
from headrace.client.errors import OutcomeUnknown, SomeFailed, TimedOut, Unreachable
from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

Item = TypeVar("Item")
Result = TypeVar("Result")

# Error codes that say that nothing was done.
_REFUSED_FOR_NOW = frozenset((ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED))


def is_refused_for_now(error: KafkaError) -> bool:
    """Whether a command that may not be repeated can be sent again: the broker did nothing."""
    return error.code in _REFUSED_FOR_NOW


def passes(error: KafkaError) -> bool:
    """Whether a read, or a command that may be repeated, can be retried after this error.

    An unknown topic is final: these requests never name topics that are still to be created.
    """
    return error.code.retriable and not isinstance(error, UnknownTopic)


async def retry_until_answered(
    cluster: ClusterClient,
    items: Sequence[Item],
    ask: Callable[[list[Item], float], Awaitable[Mapping[Item, Result | KafkaError]]],
    is_retried: Callable[[KafkaError], bool],
) -> dict[Item, Result | KafkaError]:
    """The outcome of each item, with retries. `ask` gets the items still missing and a deadline.

    Items left at the deadline have their last error as outcome, if any item has an outcome.
    """
    deadline = cluster.deadline()
    outcomes: dict[Item, Result | KafkaError] = {}
    passing: dict[Item, KafkaError] = {}

    async def attempt() -> None:
        missing = [item for item in items if item not in outcomes]
        answered = await ask(missing, deadline)
        for item in missing:
            outcome = answered.get(item) if item in answered else _not_answered(item)
            if isinstance(outcome, KafkaError) and is_retried(outcome):
                passing[item] = outcome
            else:
                outcomes[item] = outcome  # type: ignore[assignment]
                passing.pop(item, None)
        if passing:
            raise next(iter(passing.values()))

    try:
        if items:
            await cluster.retrying(attempt, deadline)
    except (TimedOut, Unreachable) as error:
        if not outcomes:
            raise
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))
        outcomes |= {item: passing.get(item, late) for item in items if item not in outcomes}
    return {item: outcomes[item] for item in items}


def _not_answered(item: object) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker says nothing of {item}")


def results(outcomes: Mapping[Item, Result | KafkaError]) -> dict[Item, Result]:
    """The result of each item; raises SomeFailed if an item failed."""
    found = {
        item: outcome for item, outcome in outcomes.items() if not isinstance(outcome, KafkaError)
    }
    if len(found) < len(outcomes):
        raise SomeFailed(outcomes)
    return found


def result(outcomes: Mapping[Item, Result | KafkaError], item: Item) -> Result:
    """The result of the only item; raises its error if it failed."""
    outcome = outcomes[item]
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


async def controller(cluster: ClusterClient, deadline: float, *, anew: bool) -> int:
    """The node for commands about the whole cluster: the controller, or any broker if none is
    known.
    """
    view = await (cluster.refresh((), deadline) if anew else cluster.heard_view(deadline))
    if view.controller_id in view.brokers:
        return view.controller_id
    if not view.brokers:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the cluster names no broker")
    return min(view.brokers)


async def send_once(cluster: ClusterClient, request: Message, node: int, deadline: float) -> Any:
    """Send a request that changes something; OutcomeUnknown if the response is lost."""
    connection = await cluster.connection(node, deadline)
    try:
        return await cluster.ask(connection, request, deadline)
    except ConnectionFailed as error:
        raise OutcomeUnknown(
            f"{error}; whether the change was made is unknown, so look before repeating it"
        ) from None


class ControllerRequests:
    """Sends the attempts of one command to the controller, looked up again after the first."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._anew = False

    async def send_once(self, request: Message, deadline: float) -> Any:
        """Send a request that must not be repeated."""
        node = await self._node(deadline)
        return await send_once(self._cluster, request, node, deadline)

    async def send(self, request: Message, deadline: float) -> Any:
        """Send a request that may be repeated."""
        return await self._cluster.call(request, deadline, await self._node(deadline))

    async def _node(self, deadline: float) -> int:
        anew, self._anew = self._anew, True
        return await controller(self._cluster, deadline, anew=anew)


def timeout_ms(cluster: ClusterClient) -> int:
    """The timeout in milliseconds that a broker is given for a command."""
    return min(int(cluster.request_timeout_s * 1000), INT32_MAX)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partition numbers grouped by topic, in order."""
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics
