"""Range assignment: each topic is cut into ranges, one for each of its subscribers.

Topics with as many partitions and the same subscribers are cut alike, so that records with the same
key in both meet in one member.
"""

from collections.abc import Mapping

from headrace.client.consumer.assignors.strategy import (
    Assignment,
    Assignor,
    Subscription,
    subscribers,
)
from headrace.types import TopicPartition


class RangeAssignor(Assignor):
    """Kafka's `range`, the default."""

    name = "range"

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Assignment:
        assignment: Assignment = {member_id: [] for member_id in members}
        for topic, readers in subscribers(members).items():
            size, longer = divmod(partition_counts.get(topic, 0), len(readers))
            start = 0
            for place, member_id in enumerate(readers):
                # The first members have one more, until the remainder is used up.
                end = start + size + (place < longer)
                assignment[member_id] += [TopicPartition(topic, n) for n in range(start, end)]
                start = end
        return assignment
