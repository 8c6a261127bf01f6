"""Round-robin assignment: partitions are dealt out like cards, over all topics."""

from collections.abc import Mapping
from itertools import cycle

from headrace.client.consumer.assignors.strategy import (
    Assignment,
    Assignor,
    Subscription,
    member_order,
    subscribers,
)
from headrace.types import TopicPartition


class RoundRobinAssignor(Assignor):
    """Kafka's `roundrobin`: even where all subscribe to the same topics."""

    name = "roundrobin"

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Assignment:
        assignment: Assignment = {member_id: [] for member_id in members}
        turns = cycle(member_order(members))
        for topic, readers in subscribers(members).items():
            allowed = set(readers)
            for number in range(partition_counts.get(topic, 0)):
                # Who does not read the topic is passed over and loses its turn, as in Java.
                member_id = next(one for one in turns if one in allowed)
                assignment[member_id].append(TopicPartition(topic, number))
        return assignment
