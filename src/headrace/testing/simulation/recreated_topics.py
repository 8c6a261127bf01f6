"""A topic that is deleted and created repeatedly, and a group that commits offsets for it.

Check: once every broker knows the new topic, the group has no offset that was committed for an
earlier topic of the same name, neither by itself nor by a transaction that ends later.

In all of Kafka's versions a TxnOffsetCommit names its topics by their names. If one is sent or
comes again after the topic was made again, no broker can tell that it was meant for the earlier
topic: then its offset may be there.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from headrace import aio
from headrace.client.types import ConsumerGroupMetadata
from headrace.errors import HeadraceError
from headrace.protocol.apis import Api, decode_request, read_request_header
from headrace.testing.simulation.faults import Faults, SentRequest
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.hosts import Host
from headrace.testing.simulation.simulated_cluster import SimulatedCluster
from headrace.types import TopicPartition

TOPIC, GROUP = "recreated", "recreators"
_PARTITION = TopicPartition(TOPIC, 0)
_REQUEST_MS = 3_000
_BLOCK_MS = 5_000
_COMMITS_MAX = 3
_TRANSACTION_CHANCE = 0.4
_KNOWN_S, _POLL_S = 10.0, 0.05
_CALM_S = 0.5
_SIZE_BYTES = 4


class CurrentOffsets:
    """The offsets that a group may have of the topic that is there now; none is used twice."""

    def __init__(self) -> None:
        self._last = 0
        self._current: set[int] = set()
        # How often each offset was sent in a transaction.
        self._sent: Counter[int] = Counter()

    def new(self) -> int:
        """An offset that was never committed before."""
        self._last += 1
        self._current.add(self._last)
        return self._last

    def recreated(self) -> None:
        """Begin with another topic, of which nothing was committed."""
        self._current.clear()

    def sent(self, frame: bytes) -> None:
        """Take note of a TxnOffsetCommit, given with its length."""
        view = memoryview(frame)[_SIZE_BYTES:]
        request = decode_request(read_request_header(view), view)
        if request.group_id == GROUP:
            self._sent.update(
                partition.committed_offset
                for topic in request.topics
                for partition in topic.partitions
            )

    def may_have(self, offset: int) -> bool:
        return offset in self._current or self._sent[offset] > 1

    def __str__(self) -> str:
        return str(sorted(self._current))


class RecreatedTopics:
    """The client, on one host, and the offsets it has committed for each topic id."""

    def __init__(self, cluster: SimulatedCluster, pause_s: float, enabled: bool) -> None:
        self.stop = False
        self.checks = 0
        self._cluster = cluster
        self._pause_s = max(pause_s, _POLL_S)
        self._enabled = enabled
        self._offsets = CurrentOffsets()
        self._violation = ""
        self.hosts = [cluster.simulation.host("d1", self._run)] if enabled else []

    def watch(self, faults: Faults) -> None:
        """Have faults tell which offsets were sent more than once."""
        if self._enabled:
            faults.watch_requests(Api.TXN_OFFSET_COMMIT, self._on_sent)

    def _on_sent(self, request: SentRequest) -> None:
        self._offsets.sent(request.frame)

    def calm_down(self) -> None:
        """Recreate the topic only now and then, while the healed cluster is only watched."""
        self._pause_s = _CALM_S

    def check(self) -> None:
        if self._violation:
            raise Violation(self._violation)

    async def _run(self, host: Host) -> None:
        while not self.stop:
            try:
                await self._recreate(host)
            except HeadraceError as error:
                host.loop.note("recreator", host.name, str(error))
                await asyncio.sleep(self._pause_s)

    async def _recreate(self, host: Host) -> None:
        servers = self._cluster.bootstrap_servers
        async with aio.Admin(
            bootstrap_servers=servers, client_id=host.name, request_timeout_ms=_REQUEST_MS
        ) as admin:
            while not self.stop:
                producer = self._producer(host)
                try:
                    # Its transaction is open while the topic is deleted and created.
                    is_open = await self._begin(producer, host)
                    with suppress(HeadraceError):
                        await admin.delete_topic(TOPIC)
                    created = await admin.create_topic(TOPIC, 1, len(self._cluster.hosts))
                    self._offsets.recreated()
                    if await self._is_known(created.topic_id):
                        await self._check_offsets(admin)
                        if is_open:
                            with suppress(HeadraceError):
                                await producer.commit_transaction()
                            await self._check_offsets(admin)
                        await self._commit(admin, host)
                finally:
                    with suppress(HeadraceError):
                        await producer.close(timeout_ms=_BLOCK_MS)

    def _producer(self, host: Host) -> aio.Producer:
        return aio.Producer(
            bootstrap_servers=self._cluster.bootstrap_servers,
            client_id=host.name,
            transactional_id=f"recreator-{host.name}",
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_BLOCK_MS,
            max_block_ms=_BLOCK_MS,
        )

    async def _begin(self, producer: aio.Producer, host: Host) -> bool:
        """At random, commit an offset in a transaction left open; returns whether it was."""
        if host.rng.random() >= _TRANSACTION_CHANCE:
            return False
        try:
            await producer.init_transactions()
            await producer.begin_transaction()
            group = ConsumerGroupMetadata(GROUP)
            await producer.send_offsets_to_transaction({_PARTITION: self._offsets.new()}, group)
        except HeadraceError:
            return False
        return True

    async def _commit(self, admin: aio.Admin, host: Host) -> None:
        for _ in range(host.rng.randint(1, _COMMITS_MAX)):
            with suppress(HeadraceError):
                await admin.alter_group_offsets(GROUP, {_PARTITION: self._offsets.new()})
            await self._check_offsets(admin)
            await asyncio.sleep(host.rng.expovariate(1 / self._pause_s))

    async def _is_known(self, topic_id: bytes) -> bool:
        """Whether all running brokers learn of a topic soon: one may be cut off."""
        simulation = self._cluster.simulation
        until = simulation.now + _KNOWN_S
        while simulation.now < until:
            images = [node.group_topics.image for _, node in self._cluster.nodes()]
            topics = [image.topics.get(TOPIC) for image in images]
            if all(topic is not None and topic.topic_id == topic_id for topic in topics):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _check_offsets(self, admin: aio.Admin) -> None:
        try:
            offsets = await admin.group_offsets(GROUP)
        except HeadraceError:
            return
        self.checks += 1
        found = offsets.get(_PARTITION)
        if found is not None and not self._offsets.may_have(found.offset) and not self._violation:
            self._violation = (
                f"the group {GROUP} has offset {found.offset} of {_PARTITION}, which was committed"
                f" for an earlier topic of that name, not one of {self._offsets}"
            )
