"""Any mix of transactions, in segments of any size, read in pieces: what a client makes of it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.replication.partition import Partition
from headrace.protocol.batch import scan_headers
from headrace.protocol.markers import Marker
from headrace.protocol.records import decode_rows
from tests.unit.broker.handlers.test_fetch import ask, on_loop, only
from tests.unit.broker.handlers.test_fetch_committed import ALONE, committed
from tests.unit.broker.handling import OneNode, batch

producers = st.integers(1, 2)
steps = st.one_of(
    st.tuples(st.just("plain"), st.just(0)),
    st.tuples(st.just("write"), producers),
    st.tuples(st.just("commit"), producers),
    st.tuples(st.just("abort"), producers),
    st.tuples(st.just("roll"), st.just(0)),
)


class Writer:
    """Writes what it is told to, and knows what readers may see of it."""

    def __init__(self, node: OneNode, partition: Partition) -> None:
        self._node = node
        self._partition = partition
        # By offset, the value and its transaction; markers have no value.
        self._written: list[tuple[bytes | None, int]] = []
        self._open: dict[int, list[int]] = {}
        self._sequences: dict[int, int] = {}
        self._aborted: set[int] = set()

    def do(self, step: str, producer_id: int) -> None:
        now_ms = self._node.clock.now_ms()
        offset = len(self._written)
        value = b"%d" % offset
        if step == "roll":
            self._partition.log.roll(now_ms)
        elif step == "plain":
            self._node.append(self._partition, value)
            self._written.append((value, 0))
        elif step == "write":
            sequence = self._sequences.get(producer_id, 0)
            data = batch(
                value,
                now_ms=now_ms,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            self._partition.append(memoryview(data), now_ms)
            self._sequences[producer_id] = sequence + 1
            self._open.setdefault(producer_id, []).append(offset)
            self._written.append((value, producer_id))
        else:
            marker = Marker(producer_id, 0, 0, step == "commit")
            self._partition.append_marker(marker, now_ms)
            records = self._open.pop(producer_id, [])
            if step == "abort":
                self._aborted.update(records)
            self._written.append((None, producer_id))

    @property
    def stable_offset(self) -> int:
        return min((value[0] for value in self._open.values()), default=len(self._written))

    def visible(self, start: int) -> list[bytes]:
        return [
            value
            for offset, (value, _) in enumerate(self._written[: self.stable_offset])
            if value is not None and offset >= start and offset not in self._aborted
        ]


def read_all(node: OneNode, start: int, bytes_max: int) -> tuple[list[bytes | None], int]:
    """What a client gets from an offset on, and where it comes to rest."""
    values: list[bytes | None] = []
    offset = start
    while True:
        data = only(ask(node, committed({0: offset}, max_bytes=bytes_max, max_wait_ms=0)))
        assert data.error_code == 0 and data.aborted_transactions is not None
        if not data.records:
            return values, offset
        waiting = sorted(
            data.aborted_transactions, key=lambda transaction: transaction.first_offset
        )
        left_out: set[int] = set()
        for header in scan_headers(data.records):
            while waiting and waiting[0].first_offset <= header.last_offset:
                left_out.add(waiting.pop(0).producer_id)
            if header.is_control:
                left_out.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in left_out):
                values += [decode_row.value for decode_row in decode_rows(data.records, header)]
            offset = header.next_offset
        assert waiting == [], "only what has to do with these records is told"


@given(
    # Long ones: short ones hardly ever end what they began.
    todo=st.lists(steps, min_size=20, max_size=60),
    start=st.sampled_from([0, 0, 3, 10]),
    bytes_max=st.sampled_from([1, 200, 1_000_000]),
)
@settings(max_examples=40, deadline=None)
def test_reader_gets_what_is_committed_and_decided(
    todo: list[tuple[str, int]], start: int, bytes_max: int
) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        writer = Writer(node, partition)
        for step in todo:
            writer.do(*step)
        assert partition.last_stable_offset == writer.stable_offset
        begin = min(start, writer.stable_offset)
        values, end = read_all(node, begin, bytes_max)
        assert (values, end) == (writer.visible(begin), writer.stable_offset)

    with TemporaryDirectory() as directory:
        on_loop(Path(directory), test)
