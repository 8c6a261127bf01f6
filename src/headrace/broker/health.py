"""The state of a node, and whether load balancers should send clients to it.

Alive is a node whose event loop answers. Ready is one that serves clients now: it has recovered its
logs, joined its cluster, is not fenced, and may accept records. Other troubles count only where
`admin.readiness.checks` says so: if a lost replica made every broker unready, nobody would be
served.
"""

from collections.abc import Callable, Iterator
from enum import Enum

from headrace.broker.node import Node
from headrace.broker.partition_summary import PartitionSummary


class NodeState(Enum):
    """The states of a node, from its start to its stop."""

    RECOVERING = "recovering"
    JOINING = "joining"
    FENCED = "fenced"
    SERVING = "serving"
    STOPPING = "stopping"


def node_state(node: Node | None, *, stopping: bool) -> NodeState:
    """The state of a node, which is None while its logs are recovered."""
    if stopping or (node is not None and node.closing):
        return NodeState.STOPPING
    if node is None:
        return NodeState.RECOVERING
    if not node.ready.is_set():
        return NodeState.JOINING
    if node.config.is_broker:
        registered = node.store.image.brokers.get(node.node_id)
        if registered is None or registered.fenced or not node.membership.may_write:
            return NodeState.FENCED
    return NodeState.SERVING


_REASONS = {
    NodeState.RECOVERING: "recovering: the logs are opened and checked",
    NodeState.JOINING: "joining: waiting for the active controller to let this node serve",
    NodeState.FENCED: "fenced: the active controller does not hear from this broker, or this broker"
    " does not hear from it",
    NodeState.STOPPING: "stopping",
}


def unready_reasons(
    state: NodeState, node: Node | None, summary: PartitionSummary | None
) -> list[str]:
    """Why a node should get no clients; none if it should. The summary is that of a moment ago."""
    if state is not NodeState.SERVING:
        return [_REASONS[state]]
    assert node is not None
    checks = node.config.admin_readiness_checks
    return list(_failed_checks(checks, node, summary or PartitionSummary()))


def _failed_checks(checks: tuple[str, ...], node: Node, summary: PartitionSummary) -> Iterator[str]:
    counts: dict[str, Callable[[], tuple[int, str]]] = {
        "under-replicated": lambda: (
            summary.under_replicated,
            "partitions led here have fewer replicas in sync than replicas",
        ),
        "under-min-isr": lambda: (
            summary.under_min_isr,
            "partitions led here have fewer replicas in sync than min.insync.replicas",
        ),
        "offline-replicas": lambda: (
            summary.offline,
            "replicas here have a log that cannot be used",
        ),
        "disk-full": lambda: (
            len(node.logs.full_directories()),
            "data directories are full",
        ),
    }
    for check in checks:
        count, condition = counts[check]()
        if count:
            yield f"{check}: {count} {condition}"
