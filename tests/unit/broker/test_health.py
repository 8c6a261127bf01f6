"""The states of a node from its start to its stop, and what `/readyz` says in each."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.health import NodeState, node_state, unready_reasons
from headrace.broker.node import Node
from headrace.broker.partition_summary import PartitionSummary


def node(
    *,
    ready: bool = True,
    fenced: bool = False,
    registered: bool = True,
    may_write: bool = True,
    closing: bool = False,
    checks: tuple[str, ...] = (),
) -> Node:
    event = asyncio.Event()
    if ready:
        event.set()
    brokers: dict[int, Any] = {1: SimpleNamespace(fenced=fenced)} if registered else {}
    made = SimpleNamespace(
        node_id=1,
        ready=event,
        closing=closing,
        config=SimpleNamespace(is_broker=True, admin_readiness_checks=checks),
        store=SimpleNamespace(image=SimpleNamespace(brokers=brokers)),
        membership=SimpleNamespace(may_write=may_write),
        logs=SimpleNamespace(full_directories=lambda: [b"one"]),
    )
    return cast("Node", made)


@pytest.mark.parametrize(
    ("found", "stopping", "state"),
    [
        (None, False, NodeState.RECOVERING),
        (None, True, NodeState.STOPPING),
        (node(ready=False), False, NodeState.JOINING),
        (node(fenced=True), False, NodeState.FENCED),
        (node(registered=False), False, NodeState.FENCED),
        (node(may_write=False), False, NodeState.FENCED),
        (node(), False, NodeState.SERVING),
        (node(closing=True), False, NodeState.STOPPING),
        (node(), True, NodeState.STOPPING),
    ],
)
def test_a_node_is_ready_in_one_state_alone(
    found: Node | None, stopping: bool, state: NodeState
) -> None:
    assert node_state(found, stopping=stopping) is state
    reasons = unready_reasons(state, found, None)
    assert bool(reasons) == (state is not NodeState.SERVING)
    assert all(reason.startswith(state.value) for reason in reasons)


def test_troubles_count_only_where_the_policy_says_so() -> None:
    troubled = PartitionSummary(under_replicated=2, under_min_isr=1, offline=3)
    assert unready_reasons(NodeState.SERVING, node(), troubled) == []
    strict = node(checks=("under-min-isr", "offline-replicas", "disk-full", "under-replicated"))
    starts = ["under-min-isr: 1 ", "offline-replicas: 3 ", "disk-full: 1 ", "under-replicated: 2 "]
    reasons = unready_reasons(NodeState.SERVING, strict, troubled)
    assert [text[: len(start)] for text, start in zip(reasons, starts, strict=True)] == starts
    healthy = unready_reasons(NodeState.SERVING, strict, PartitionSummary())
    assert [reason.split(":")[0] for reason in healthy] == ["disk-full"]
