"""Ctrl-C at moments that leave nothing half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

INTERRUPTED = 130


class Interrupts:
    """Between entry and exit Ctrl-C is only noted, except where `allowed` says it may strike.

    A second Ctrl-C always strikes: the user insists.
    """

    def __init__(self) -> None:
        self.requested = False
        self.insisted = False
        self._allowed = False
        self._previous: object = None

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread and lets no other one set handlers.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A block that waits and may be interrupted; one that was asked for before strikes now."""
        if self.requested:
            raise KeyboardInterrupt
        self._allowed = True
        try:
            yield
        finally:
            self._allowed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.insisted = self.requested
        self.requested = True
        if self._allowed or self.insisted:
            raise KeyboardInterrupt
