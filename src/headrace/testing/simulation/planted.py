"""Bugs planted on purpose: a simulator that does not find them would find no others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from headrace.broker.partition import Partition
from headrace.testing.simulation.files import SimulatedFile


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with the bug of that name; without any if the name is empty."""
    if not name:
        yield
        return
    target, attribute, wrong = PLANTED[name]
    with patch.object(target, attribute, wrong(getattr(target, attribute))):
        yield


def _ack_before_high_watermark(right: Callable[..., Any]) -> Callable[..., Any]:
    """A leader answers once it has a record itself."""
    return lambda self, last_offset: None


def _truncate_by_high_watermark(right: Callable[..., Any]) -> Callable[..., Any]:
    """A follower throws away what it does not know to be committed, as Kafka once did."""

    def follow(self: Partition, image: Any) -> None:
        starts = self.is_leader or image.leader_epoch != self.leader_epoch
        right(self, image)
        if starts and self.high_watermark < self.log.log_end_offset:
            self.truncate_to(self.high_watermark)

    return follow


def _skip_fsync(right: Callable[..., Any]) -> Callable[..., Any]:
    """Votes and metadata are written, and never flushed."""

    def sync(self: SimulatedFile) -> None:
        if "__cluster_metadata" not in self.path and "quorum-state" not in self.path:
            right(self)

    return sync


# The name of a bug: where it is, and what makes the wrong thing out of the right one.
PLANTED: dict[str, tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "ack-before-high-watermark": (Partition, "committed", _ack_before_high_watermark),
    "truncate-by-high-watermark": (Partition, "follow", _truncate_by_high_watermark),
    "skip-fsync": (SimulatedFile, "sync", _skip_fsync),
}
