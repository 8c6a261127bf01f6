"""Ctrl-C handling that leaves no operation half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

INTERRUPTED = 130


class Interrupts:
    """Between entry and exit Ctrl-C is only recorded, except inside `allowed`.

    A second Ctrl-C always interrupts: the user insists.
    """

    def __init__(self) -> None:
        self.requested = False
        self.insisted = False
        self._allowed = False
        self._previous: object = None

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread, and only that may set handlers.
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
        """A waiting block that Ctrl-C may interrupt; a Ctrl-C recorded before interrupts at its
        start.
        """
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
