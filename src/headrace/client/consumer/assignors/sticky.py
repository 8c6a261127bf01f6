"""Sticky assignment: as even as can be, and everybody keeps what it can (KIP-54, KIP-429).

`sticky` members give up all they have before they join, and tell the leader what that was;
`cooperative-sticky` members keep it. Their leader gives a partition to a new owner only when the
old one does not claim it any more, which takes a second rebalance.
"""

from collections.abc import Collection, Iterable, Mapping

from headrace.client.consumer.assignors.balance import Balance
from headrace.client.consumer.assignors.strategy import (
    NO_GENERATION,
    Assignment,
    Assignor,
    Subscription,
    member_order,
    subscribers,
)
from headrace.client.consumer.assignors.wire import (
    decode_generation,
    decode_previous,
    encode_generation,
    encode_previous,
)
from headrace.types import TopicPartition


class StickyAssignor(Assignor):
    """Kafka's `sticky`: members tell in their user data what they had, and in which generation."""

    name = "sticky"

    def user_data(self, previous: Iterable[TopicPartition], generation: int) -> bytes | None:
        return encode_previous(previous, generation) if generation != NO_GENERATION else None

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Assignment:
        claims = {
            # Some say it in the field meant for cooperative members instead.
            member_id: decode_previous(one.user_data) or (one.owned, one.generation)
            for member_id, one in members.items()
        }
        return _balanced(partition_counts, members, _owners(claims))


class CooperativeStickyAssignor(Assignor):
    """Kafka's `cooperative-sticky`: no partition has a new owner before the old one let it go."""

    name = "cooperative-sticky"
    is_cooperative = True

    def user_data(self, previous: Iterable[TopicPartition], generation: int) -> bytes | None:
        # Members before version 2 of the subscription look for the generation here.
        return encode_generation(generation)

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Assignment:
        claims = {member_id: (one.owned, _generation(one)) for member_id, one in members.items()}
        assignment = _balanced(partition_counts, members, _owners(claims))
        claimed_by: dict[TopicPartition, set[str]] = {}
        for member_id, one in members.items():
            for tp in one.owned:
                claimed_by.setdefault(tp, set()).add(member_id)
        return {
            member_id: [tp for tp in mine if member_id in claimed_by.get(tp, {member_id})]
            for member_id, mine in assignment.items()
        }


def _generation(subscription: Subscription) -> int:
    if subscription.generation != NO_GENERATION:
        return subscription.generation
    return decode_generation(subscription.user_data)


def _balanced(
    partition_counts: Mapping[str, int],
    members: Mapping[str, Subscription],
    kept: Mapping[TopicPartition, str],
) -> Assignment:
    balance = Balance(partition_counts, subscribers(members), member_order(members), kept)
    balance.level()
    return balance.assignment


def _owners(
    claims: Mapping[str, tuple[Collection[TopicPartition], int]],
) -> dict[TopicPartition, str]:
    """Who had each partition last. Of two who claim it for one generation, neither is believed."""
    latest: dict[TopicPartition, int] = {}
    owners: dict[TopicPartition, str] = {}
    for member_id, (partitions, generation) in claims.items():
        for tp in set(partitions):
            if tp not in latest or generation > latest[tp]:
                latest[tp] = generation
                owners[tp] = member_id
            elif generation == latest[tp]:
                owners.pop(tp, None)
    return owners
