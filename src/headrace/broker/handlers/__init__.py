"""One module per API or family of APIs; importing this package registers all handlers."""

from headrace.broker.handlers import (
    api_versions,
    cluster,
    configs,
    fetch,
    find_coordinator,
    groups,
    init_producer_id,
    list_offsets,
    log_dirs,
    metadata,
    offset_for_leader_epoch,
    offsets,
    produce,
    reassignments,
    records,
    topics,
)

__all__ = [
    "api_versions",
    "cluster",
    "configs",
    "fetch",
    "find_coordinator",
    "groups",
    "init_producer_id",
    "list_offsets",
    "log_dirs",
    "metadata",
    "offset_for_leader_epoch",
    "offsets",
    "produce",
    "reassignments",
    "records",
    "topics",
]
