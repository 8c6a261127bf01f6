from collections.abc import Iterable, Sequence

from headrace.types import Buffer

COMPILED: bool

class RequestCounters:
    def __init__(
        self,
        bounds: Iterable[float],
        queue_counts: list[int],
        handler_counts: list[int],
        total_counts: list[int],
    ) -> None: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def queue_s(self) -> float: ...
    @property
    def handler_s(self) -> float: ...
    @property
    def total_s(self) -> float: ...
    def handled(
        self,
        received_bytes: int,
        queue_s: float,
        handler_s: float,
        reply: Sequence[Buffer] | None,
        is_answered: bool,
    ) -> None: ...
    def answered(self, total_s: float, reply: Sequence[Buffer] | None) -> None: ...
