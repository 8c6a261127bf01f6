"""Coordinators of groups and transactions: lookup, and requests to them with retries.

Rule: after an error that means another coordinator, or not yet, the request is repeated before the
deadline, with the coordinator looked up again. Any other response is final.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from headrace.client.cluster import ClusterClient
from headrace.client.errors import failure
from headrace.errors import ErrorCode, KafkaError, Subject
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest

# The number of groups per request, so that neither it nor its response grows without bound.
GROUPS_PER_REQUEST = 200

_ELSEWHERE_OR_LATER = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)

Outcome = TypeVar("Outcome")


class CoordinatorType(IntEnum):
    """The types of coordinators, with their numbers in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1

    def __str__(self) -> str:
        return "group" if self is CoordinatorType.GROUP else "transactional id"


def is_elsewhere_or_later(error: KafkaError | None) -> bool:
    """Whether to retry, after another lookup: the coordinator has moved or is not ready."""
    return error is not None and error.code in _ELSEWHERE_OR_LATER


class CoordinatorLookup:
    """The coordinators of groups, looked up on first use. For one event loop.

    With the transaction `kind` it has those of transactional ids, which then stand for groups.
    """

    def __init__(
        self, cluster: ClusterClient, kind: CoordinatorType = CoordinatorType.GROUP
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._nodes: dict[str, int] = {}

    async def node_of(self, group: str, deadline: float) -> int:
        """The coordinator of a group, looked up unless it is known."""

        async def found(node: int, _: float) -> int:
            return node

        return await self.ask_one(group, found, deadline)

    def forget(self, group: str) -> None:
        """Look the coordinator up again next time: it denied being it, or does not answer."""
        self._nodes.pop(group, None)

    def remember(self, nodes: Mapping[str, int]) -> None:
        """Note coordinators from responses of brokers that list their own groups."""
        self._nodes |= nodes

    async def ask_one(
        self,
        group: str,
        ask: Callable[[int, float], Awaitable[Outcome]],
        deadline: float | None = None,
    ) -> Outcome:
        """The response of a group's coordinator; `ask` gets its node id and a deadline."""

        async def attempt_any(node: int, names: list[str], deadline: float) -> dict[str, Any]:
            try:
                return {group: await ask(node, deadline)}
            except KafkaError as error:
                if is_elsewhere_or_later(error):
                    return {group: error}
                raise

        outcome: Outcome | KafkaError = (await self.ask([group], attempt_any, deadline))[group]
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    async def ask(
        self,
        groups: Sequence[str],
        ask: Callable[[int, list[str], float], Awaitable[dict[str, Outcome | KafkaError]]],
        deadline: float | None = None,
    ) -> dict[str, Outcome | KafkaError]:
        """The outcomes of groups, requested from their coordinators; `ask` gets a node, its groups,
        a deadline.

        Only groups without a final outcome are requested again.
        """
        until = self._cluster.deadline() if deadline is None else deadline
        outcomes: dict[str, Outcome | KafkaError] = {}

        async def attempt() -> dict[str, Outcome | KafkaError]:
            missing = [name for name in dict.fromkeys(groups) if name not in outcomes]
            outcomes.update(await self._find(missing, until))
            passing: KafkaError | None = None
            for node, asked in self._requests(
                [group for group in missing if group not in outcomes]
            ):
                answers = await self._request_node(node, asked, ask, until)
                for name, outcome in answers.items():
                    if isinstance(outcome, KafkaError) and is_elsewhere_or_later(outcome):
                        self._nodes.pop(name, None)
                        passing = outcome
                    else:
                        outcomes[name] = outcome
            if passing is not None:
                raise passing
            return {name: outcomes[name] for name in groups}

        return await self._cluster.retrying(attempt, until)

    def _requests(self, groups: Sequence[str]) -> list[tuple[int, list[str]]]:
        """The groups by coordinator, in parts that fit one request."""
        by_node: dict[int, list[str]] = {}
        for name in groups:
            by_node.setdefault(self._nodes[name], []).append(name)
        return [
            (node, names[start : start + GROUPS_PER_REQUEST])
            for node, names in by_node.items()
            for start in range(0, len(names), GROUPS_PER_REQUEST)
        ]

    async def _request_node(
        self,
        node: int,
        groups: list[str],
        request: Callable[[int, list[str], float], Awaitable[dict[str, Outcome | KafkaError]]],
        deadline: float,
    ) -> dict[str, Outcome | KafkaError]:
        try:
            answered = await request(node, groups, deadline)
        except ConnectionFailed:
            # Another broker may coordinate the groups by now.
            for name in groups:
                self._nodes.pop(name, None)
            raise
        return {
            name: answered[name]
            if name in answered
            else KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"broker {node} says nothing of {self._kind} {name}",
            )
            for name in groups
        }

    async def _find(self, groups: Sequence[str], deadline: float) -> dict[str, KafkaError]:
        """Look up the unknown coordinators; returns the groups whose lookup failed for good."""
        refused: dict[str, KafkaError] = {}
        missing = [name for name in groups if name not in self._nodes]
        while missing:
            asked = missing[:GROUPS_PER_REQUEST]
            request = FindCoordinatorRequest(
                key=asked[0], key_type=self._kind, coordinator_keys=asked
            )
            for coordinator in _named(asked[0], await self._cluster.call(request, deadline)):
                error = failure(
                    coordinator.error_code,
                    coordinator.error_message,
                    Subject(str(self._kind), coordinator.key),
                )
                if error is None:
                    self._nodes[coordinator.key] = coordinator.node_id
                elif self._cluster.passes(error):
                    raise error
                else:
                    refused[coordinator.key] = error
            left = [name for name in missing if name not in self._nodes and name not in refused]
            if left == missing:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"nobody coordinates {self._kind} {left[0]}",
                )
            missing = left
        await self._check_known([name for name in groups if name not in refused], deadline)
        return refused

    async def _check_known(self, groups: Sequence[str], deadline: float) -> None:
        """Check that the coordinators are known brokers, refreshing the metadata if not.

        Meanwhile another caller may have found that a coordinator does not answer.
        """
        view = await self._cluster.heard_view(deadline)
        if any(self._nodes.get(name) not in view.brokers for name in groups):
            view = await self._cluster.refresh((), deadline)
        for name in groups:
            if self._nodes.get(name) not in view.brokers:
                node = self._nodes.pop(name, -1)
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"broker {node}, which coordinates {self._kind} {name}, is not part of the"
                    " cluster",
                )


def _named(key: str, response: Any) -> list[Coordinator]:
    """The coordinators in a response; before version 4 it is about one key and has no list."""
    if response.coordinators:
        found: list[Coordinator] = response.coordinators
        return found
    return [
        Coordinator(
            key=key,
            node_id=response.node_id,
            error_code=response.error_code,
            error_message=response.error_message,
        )
    ]
