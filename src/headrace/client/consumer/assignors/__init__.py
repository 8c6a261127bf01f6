"""The strategies by which the leader of a group shares out partitions, by Kafka's names."""

from headrace.client.consumer.assignors.ranges import RangeAssignor
from headrace.client.consumer.assignors.round_robin import RoundRobinAssignor
from headrace.client.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from headrace.client.consumer.assignors.strategy import Assignment, Assignor, Subscription

ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
    )
}

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "Subscription"]
