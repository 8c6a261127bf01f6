"""Members against a coordinator, both without I/O: no partition ever has two owners."""

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.client.consumer.assignors import ASSIGNORS
from headrace.client.consumer.group_membership import (
    GroupMembership,
    JoinOutcome,
    JoinPhase,
    MembershipSettings,
)
from headrace.coordinator.shard import GroupSettings
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.types import TopicPartition
from tests.unit.coordinator.driving import GROUP, REBALANCE_MS, SESSION_MS, Shell

ROUND_MS = 1500
ROUNDS = 150
SETTLING_ROUNDS = 100
COOPERATIVE = "cooperative-sticky"


class Consumer:
    """A member and what it owns; each turn it does the next thing the protocol has it do."""

    def __init__(self, shell: Shell, topics: set[str], counts: dict[str, int], name: str) -> None:
        strategies = tuple(ASSIGNORS[part] for part in name.split(","))
        self.membership = GroupMembership(
            MembershipSettings(GROUP, strategies, SESSION_MS, REBALANCE_MS)
        )
        self.topics = topics
        self.owned: list[TopicPartition] = []
        self.has_lost = False
        self._shell = shell
        self._counts = counts
        self._token: int | None = None
        self._sender = self.membership.identity
        self._shared_counts: dict[str, int] = {}

    def turn(self, loses_answer: bool = False) -> None:
        if self._token is None:
            self._ask()
        elif (answer := self._shell.answers.get(self._token)) is not None:
            self._token = None
            if not loses_answer:
                self._take(answer)

    def leave(self) -> None:
        request = self.membership.leave("it wants to")
        if request is not None:
            self._shell.send(request, 5)

    def _ask(self) -> None:
        membership = self.membership
        if membership.is_stable:
            if membership.is_leader and self._shared_counts != self._counts:
                membership.must_join_again("topics have grown")
            self._sender = membership.identity
            self._token = self._shell.send(membership.heartbeat(), 4)
            return
        if membership.phase is JoinPhase.OUTSIDE:
            self.has_lost |= bool(self.owned)
            self.owned = []
        revoked = membership.to_revoke(self.owned, self.topics)
        self.owned = [tp for tp in self.owned if tp not in revoked]
        self._token = self._shell.send(membership.join(self.topics, self.owned), 9)

    def _take(self, answer: Any) -> None:
        membership = self.membership
        if isinstance(answer, JoinGroupResponse):
            verdict = membership.joined(answer)
            if verdict is JoinOutcome.DONE:
                self._shared_counts = dict(self._counts)
                self._token = self._shell.send(membership.sync(self._shared_counts), 5)
        elif isinstance(answer, SyncGroupResponse):
            if membership.synced(answer) is JoinOutcome.DONE:
                revoked, _ = membership.changes(self.owned)
                self.owned = list(membership.assignment)
                if revoked:
                    membership.must_join_again("partitions were given up")
        else:
            assert isinstance(answer, HeartbeatResponse)
            membership.heard(self._sender, answer.error_code)


class Model:
    """A group whose members come, go, crash and miss answers, all by one seed."""

    def __init__(self, seed: int, strategies: str) -> None:
        self.random = Random(seed)
        self.shell = Shell(GroupSettings(initial_rebalance_delay_ms=0), seed=seed)
        self.counts = {"a": 3, "b": 2}
        self.strategies = strategies
        self.alive: list[Consumer] = []

    def round(self, is_calm: bool = False) -> None:
        for consumer in self.random.sample(self.alive, len(self.alive)):
            consumer.turn(loses_answer=not is_calm and self.random.random() < 0.05)
            self.check()
        self.shell.advance(ROUND_MS)

    def disturb(self) -> None:
        chance = self.random.random()
        if chance < 0.35 and len(self.alive) < 5:
            topics = set(self.random.choice(["a", "b", "ab", "ab", "ab"]))
            self.alive.append(Consumer(self.shell, topics, self.counts, self.strategies))
        elif chance < 0.55 and self.alive:
            gone = self.alive.pop(self.random.randrange(len(self.alive)))
            if chance < 0.45:
                gone.leave()
        elif chance < 0.65:
            self.counts[self.random.choice("ab")] += 1
        elif chance < 0.75 and self.alive:
            consumer = self.random.choice(self.alive)
            consumer.topics = set(self.random.choice(["a", "b", "ab"]))
            consumer.membership.must_join_again("the subscription changed")

    def check(self) -> None:
        owned = [tp for consumer in self.alive for tp in consumer.owned]
        assert len(owned) == len(set(owned)), [sorted(broker_id.owned) for broker_id in self.alive]

    def settle(self) -> None:
        if not self.alive:
            self.alive.append(Consumer(self.shell, {"a", "b"}, self.counts, self.strategies))
        for _ in range(SETTLING_ROUNDS):
            self.round(is_calm=True)
        assert all(broker_id.membership.is_stable for broker_id in self.alive)
        wanted = sorted(
            TopicPartition(topic, number)
            for topic, count in self.counts.items()
            for number in range(count)
            if any(topic in broker_id.topics for broker_id in self.alive)
        )
        assert sorted(tp for broker_id in self.alive for tp in broker_id.owned) == wanted
        for broker_id in self.alive:
            assert {tp.topic for tp in broker_id.owned} <= broker_id.topics


@pytest.mark.parametrize(
    "strategies", ["range", "roundrobin", "sticky", COOPERATIVE, f"range,{COOPERATIVE}"]
)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=9927)  # Answers to joins are lost for as long as a session: asking is a sign of life.
def test_no_partition_ever_has_two_owners_and_in_the_end_all_have_one(
    strategies: str, seed: int
) -> None:
    model = Model(seed, strategies)
    for _ in range(ROUNDS):
        model.disturb()
        model.round()
    model.settle()


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_cooperative_members_that_stay_never_lose_what_they_had(seed: int) -> None:
    model = Model(seed, COOPERATIVE)
    for _ in range(ROUNDS):
        model.disturb()
        model.round(is_calm=True)
    model.settle()
    assert not any(consumer.has_lost for consumer in model.alive)
