"""What every assignment strategy is given and gives back. Values, no I/O."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from headrace.types import TopicPartition

NO_GENERATION = -1

# The partitions of each member, by its id.
Assignment: TypeAlias = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member says when it joins.

    `owned` are the partitions it goes on reading meanwhile, `generation` the one it had them from.
    """

    topics: Collection[str]
    owned: Collection[TopicPartition] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack: str | None = None
    instance_id: str | None = None


class Assignor(ABC):
    """A strategy by which the leader of a group shares out partitions.

    It has no state, so that every member would decide the same. Unlike Kafka: racks are carried
    along and not looked at.
    """

    name: ClassVar[str]
    # Whether members may keep partitions while the group rebalances (KIP-429).
    is_cooperative: ClassVar[bool] = False

    def user_data(self, previous: Iterable[TopicPartition], generation: int) -> bytes | None:
        """What a member tells the leader besides its topics: for most strategies nothing."""
        return None

    @abstractmethod
    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Assignment:
        """Share out the partitions of all topics that exist among those who subscribe to them.

        Every member has an entry, which may be empty.
        """


def member_order(members: Mapping[str, Subscription]) -> list[str]:
    """The members as Java orders them: static ones by their instance ids, then the others.

    Ids of members change with every start, instance ids do not.
    """

    def key(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return (instance_id is None, instance_id or "", member_id)

    return sorted(members, key=key)


def subscribers(members: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """Who subscribes to each topic, in `member_order`; topics in order of their names."""
    found: dict[str, list[str]] = {}
    for member_id in member_order(members):
        for topic in dict.fromkeys(members[member_id].topics):
            found.setdefault(topic, []).append(member_id)
    return dict(sorted(found.items()))
