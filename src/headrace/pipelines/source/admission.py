"""How far a micro-batch goes, if it may not go to the end."""

from collections.abc import Mapping
from fractions import Fraction

from headrace.pipelines.source.offsets import Offsets
from headrace.pipelines.source.options import Limits
from headrace.types import TopicPartition


def admitted(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    limits: Limits,
    bytes_per_offset: Mapping[TopicPartition, Fraction],
) -> Offsets:
    """The ends of a micro-batch within the limits.

    Every partition goes the same share of its way, and at least one offset, so that none starves.
    """
    sizes = {tp: max(0, end - starts[tp]) for tp, end in ends.items()}
    share = _share(sizes, limits, bytes_per_offset)
    if share >= 1:
        return dict(ends)
    return {
        tp: starts[tp] + max(1, int(size * share)) if size else ends[tp]
        for tp, size in sizes.items()
    }


def _share(
    sizes: Mapping[TopicPartition, int],
    limits: Limits,
    bytes_per_offset: Mapping[TopicPartition, Fraction],
) -> Fraction:
    share = Fraction(1)
    offsets = sum(sizes.values())
    if limits.max_offsets is not None and offsets:
        share = min(share, Fraction(limits.max_offsets, offsets))
    if limits.max_bytes is not None:
        size_bytes = sum(size * bytes_per_offset.get(tp, 0) for tp, size in sizes.items())
        if size_bytes:
            share = min(share, limits.max_bytes / Fraction(size_bytes))
    return share


class Waiting:
    """Whether a micro-batch is worth starting, or more records are waited for."""

    def __init__(self) -> None:
        self._last_ms: int | None = None

    def goes_on(self, offsets: int, limits: Limits, now_ms: int) -> bool:
        """Whether there are too few records, and the last micro-batch is not long ago.

        The first one does not wait: how long ago the last was is not known.
        """
        too_few = limits.min_offsets is not None and offsets < limits.min_offsets
        if too_few and self._last_ms is not None and now_ms - self._last_ms < limits.max_delay_ms:
            return True
        if offsets:
            self._last_ms = now_ms
        return False
