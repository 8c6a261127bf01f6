"""Members that come, go, hang, lose responses and change their minds, and coordinators that move.

Whatever happens: no partition is read by two of them at a time, offsets are committed only by who
has the partition, and once it is calm every partition has an owner.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.coordinator.groups.consumer_group import ConsumerGroup
from headrace.coordinator.shard import ConsumerGroupOptions
from headrace.errors import ErrorCode
from tests.unit.coordinator.consumer_members import Member, Owned, Topics, described
from tests.unit.coordinator.driving import GROUP, Shell

SESSION_MS = 45_000
SUBSCRIPTIONS: list[tuple[tuple[str, ...] | None, str | None]] = [
    (("a",), None),
    (("a", "b"), None),
    (("b",), "a.*"),
    (None, "a.*"),
    ((), None),
]


@dataclass
class Client:
    """A client process: its member, and when it was last answered.

    A slow one needs another heartbeat until it has given up what it is to revoke.
    """

    member: Member
    heard_ms: int
    is_slow: bool
    is_hung: bool = False
    keeps: Owned | None = None

    def beat(self) -> ErrorCode:
        member = self.member
        keeps, self.keeps = self.keeps, None
        if keeps is not None:
            code = member.beat(report=False)
            if code is ErrorCode.NONE:
                member.owned = keeps if member.given is None else member.given
            return code
        code = member.beat()
        if code is ErrorCode.NONE and member.given is not None:
            if self.is_slow and member.given < member.owned:
                self.keeps = member.given
            else:
                member.give_up()
        return code


class ConsumerGroups(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 3), assignor=st.sampled_from([None, "range"]))
    def start(self, seed: int, assignor: str | None) -> None:
        self.shell = Shell(
            seed=seed,
            topics=Topics(a=3, b=2),
            options=ConsumerGroupOptions(session_timeout_ms=SESSION_MS),
        )
        self.assignor = assignor
        self.clients: list[Client] = []
        self.number = 0

    @property
    def topics(self) -> Topics:
        assert isinstance(self.shell.catalog, Topics)
        return self.shell.catalog

    # -- what happens

    @precondition(lambda self: len(self.clients) < 5)
    @rule(subscription=st.sampled_from(SUBSCRIPTIONS), static=st.booleans(), is_slow=st.booleans())
    def come(
        self,
        subscription: tuple[tuple[str, ...] | None, str | None],
        static: bool,
        is_slow: bool,
    ) -> None:
        self.number += 1
        taken = {client.member.instance for client in self.clients}
        instance = next((name for name in ("i1", "i2") if name not in taken), None)
        topics, pattern = subscription
        member = Member(
            self.shell,
            f"m{self.number}",
            topics,
            pattern,
            instance=instance if static else None,
            assignor=self.assignor,
        )
        code = member.join()
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            return  # Who had it died, and its session goes on.
        assert code is ErrorCode.NONE, member
        self.clients.append(Client(member, self.shell.now_ms, is_slow))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self._beat(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def beat_without_hearing(self, data: st.DataObject) -> None:
        """The response is lost, so that the client does not act by it."""
        client = data.draw(st.sampled_from(self.clients))
        if not client.is_hung:
            member = client.member
            epoch, owned, error = member.epoch, member.owned, member.error
            member.beat()
            member.epoch, member.owned, member.error = epoch, owned, error

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), subscription=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(
        self, data: st.DataObject, subscription: tuple[tuple[str, ...] | None, str | None]
    ) -> None:
        client = data.draw(st.sampled_from(self.clients))
        member = client.member
        if client.is_hung or member.epoch <= 0:
            return
        names, pattern = subscription
        member.topics, member.pattern = names or (), pattern or ""
        code = member.beat(full=True)
        if code is ErrorCode.NONE:
            member.give_up()
            client.keeps = None
            client.heard_ms = self.shell.now_ms
        else:
            self._join_again(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), epoch=st.sampled_from([-1, -2]))
    def leave(self, data: st.DataObject, epoch: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if not client.is_hung:
            client.member.leave(epoch if client.member.instance else -1)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def hang(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.clients)).is_hung = True

    @rule(ms=st.sampled_from([100, 1_000, 5_000, 20_000, SESSION_MS]))
    def wait(self, ms: int) -> None:
        """Time passes; who hears nothing for its session stops reading, as clients do."""
        for _ in range(max(ms // 5_000, 1)):
            self.shell.advance(min(ms, 5_000))
            for client in self.clients:
                if self.shell.now_ms - client.heard_ms >= SESSION_MS:
                    client.member.owned = frozenset()
                if not client.is_hung:
                    self._beat(client)
        self.clients = [
            client
            for client in self.clients
            if not client.is_hung or self.shell.now_ms - client.heard_ms < SESSION_MS
        ]

    @rule(
        change=st.sampled_from(
            [{"a": 3}, {"a": 5}, {"b": 4}, {"aa": 2}, {"c": 1}, {"b": None}, {"aa": None}]
        )
    )
    def change_topics(self, change: dict[str, int | None]) -> None:
        for name, size in change.items():
            known = self.topics.by_name(name)
            if size is None:
                if known is not None:
                    self.topics.delete(name)
            elif known is None or known.size < size:
                self.topics.set(**{name: size})

    @rule()
    def move_coordinator(self) -> None:
        self.shell = self.shell.reload()
        for client in self.clients:
            client.member.shell = self.shell

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Who reads a partition may commit to it, also with the epoch it last heard of."""
        client = data.draw(st.sampled_from(self.clients))
        member = client.member
        for topic, partition in sorted(member.owned):
            if self.topics.by_name(topic) is None or member.epoch <= 0:
                continue
            group = self.shell.shard._groups.get(GROUP)
            assert isinstance(group, ConsumerGroup)
            known = group.members.get(member.member_id)
            code = self.shell.commit(
                member.member_id, member.epoch, 1, topic=topic, partition=partition
            )
            topic_id = topic.encode().rjust(16, b"\0")
            if known is not None and partition in known.assigned.get(topic_id, ()):
                assert code is ErrorCode.NONE, (member, known)

    def _beat(self, client: Client) -> None:
        if client.is_hung:
            return
        if client.beat() is ErrorCode.NONE:
            client.heard_ms = self.shell.now_ms
        else:
            self._join_again(client)

    def _join_again(self, client: Client) -> None:
        member = client.member
        assert member.error in {
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
        }, member.error
        member.owned, client.keeps = frozenset(), None
        if member.join() is ErrorCode.NONE:
            client.heard_ms = self.shell.now_ms
        else:
            # The coordinator waits until its former self is gone.
            assert member.error in {
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNRELEASED_INSTANCE_ID,
            }
            client.is_hung = True

    # -- what is true of it

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        readers: dict[tuple[str, int], str] = {}
        for client in self.clients:
            if client.is_hung and self.shell.now_ms - client.heard_ms >= SESSION_MS:
                continue
            for partition in client.member.owned:
                other = readers.setdefault(partition, client.member.member_id)
                assert other == client.member.member_id, partition

    @invariant()
    def the_log_gives_back_the_group(self) -> None:
        again = self.shell.reload()
        assert described(again) == described(self.shell)

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        self.clients = [client for client in self.clients if not client.is_hung]
        for _ in range(30):
            self.shell.advance(5_000)
            for client in self.clients:
                self._beat(client)
        alive = [client.member for client in self.clients if not client.is_hung]
        wanted = {
            (name, partition)
            for name in self.topics.names()
            for partition in range(getattr(self.topics.by_name(name), "size", 0))
            for member in alive
            if name in (member.topics or ()) or (member.pattern and name.startswith("a"))
        }
        read = [partition for member in alive for partition in member.owned]
        assert sorted(read) == sorted(wanted), alive
        assert described(self.shell).group_state in {"Stable", "Empty", ""}


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
