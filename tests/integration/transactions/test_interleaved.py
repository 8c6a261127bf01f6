"""Many transactions at once on one partition, ended in any order, beside what is in none."""

from random import Random

from tests.integration.requests import batch
from tests.integration.transactions.raw import RawProducer
from tests.integration.transactions.reading import end, read_committed, stable
from tests.integration.transactions.watching import READERS
from tests.integration.wire import Wire, create_topic, produce
from tests.support import BrokerProcess

STEPS = 60
PRODUCERS = 4


class Model:
    """What the partition holds, and what readers of committed records may see of it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes]] = []
        """Every record with its producer, and every marker, at its offset."""
        self.open: dict[str, int] = {}
        self.aborted: list[tuple[str, int, int]] = []

    def write(self, producer: str, value: bytes) -> None:
        if producer:
            self.open.setdefault(producer, len(self.log))
        self.log.append((producer, value))

    def end(self, producer: str, *, committed: bool) -> None:
        first = self.open.pop(producer)
        if not committed:
            self.aborted.append((producer, first, len(self.log)))
        self.log.append((producer, b""))

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=len(self.log))

    def committed(self) -> list[bytes]:
        return [
            value
            for offset, (producer, value) in enumerate(self.log[: self.stable])
            if value
            and not any(
                who == producer and first <= offset < last for who, first, last in self.aborted
            )
        ]


def test_readers_see_what_was_committed_and_no_further_than_what_is_open(
    broker: BrokerProcess, old: bool
) -> None:
    rng, model = Random(int(old)), Model()
    topic = f"interleaved-{old}"
    create_topic(broker.address, topic)
    producers = {
        name: RawProducer(broker.address, name, old=old).init()
        for name in (f"{topic}/{number}" for number in range(PRODUCERS))
    }

    def finish(name: str, *, committed: bool) -> None:
        one = producers[name]
        one.commit() if committed else one.abort()
        one.wait_until("CompleteCommit" if committed else "CompleteAbort")
        model.end(name, committed=committed)

    for step in range(STEPS):
        name = rng.choice(list(producers))
        draw = rng.random()
        value = b"%d" % step
        if draw < 0.15:
            with Wire(broker.address) as wire:
                assert produce(wire, topic, batch(value)).error_code == 0
            model.write("", value)
        elif draw < 0.4 and name in model.open:
            finish(name, committed=rng.random() < 0.5)
        else:
            assert producers[name].send(topic, value) == len(model.log)
            model.write(name, value)
        assert stable(broker.address, topic) == model.stable
        if step % 8 == 0:
            assert read_committed(broker.address, topic) == model.committed()
    assert model.aborted and model.open
    for name in list(model.open):
        finish(name, committed=True)
    wanted = model.committed()
    assert stable(broker.address, topic) == end(broker.address, topic) == len(model.log)
    assert read_committed(broker.address, topic) == wanted
    for read in READERS.values():
        assert read(broker.address, topic, {0: len(wanted)}) == {0: wanted}


def test_state_outlives_a_crash_with_transactions_open(broker: BrokerProcess, old: bool) -> None:
    topic = f"crashed-{old}"
    create_topic(broker.address, topic)
    lasting, aborted, late = (
        RawProducer(broker.address, f"{topic}/{name}", old=old).init()
        for name in ("lasting", "aborted", "late")
    )
    assert aborted.send(topic, b"aborted") == 0
    assert lasting.send(topic, b"lasting") == 1
    assert late.send(topic, b"late") == 2
    aborted.abort()
    aborted.wait_until("CompleteAbort")
    late.commit()
    late.wait_until("CompleteCommit")
    assert stable(broker.address, topic) == 1
    broker.kill()
    broker.start()
    # The state of the producer is there: it goes on where it was.
    assert lasting.brokers.coordinator(lasting.transactional_id)
    assert (stable(broker.address, topic), end(broker.address, topic)) == (1, 5)
    assert read_committed(broker.address, topic) == []
    lasting.wait_until("Ongoing")
    lasting.send(topic, b"more")
    lasting.commit()
    lasting.wait_until("CompleteCommit")
    assert read_committed(broker.address, topic) == [b"lasting", b"late", b"more"]
