"""Asking a run to stop: Ctrl-C and SIGTERM are noted, and heard where nothing is half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether to stop. A second signal strikes at once: the user insists."""

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False

    def request(self) -> None:
        """Stop as if SIGTERM had come."""
        self.requested = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals of this process are noted here. Python gives them to its main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        insisted = self.requested
        self.requested = True
        self.interrupted = self.interrupted or number == signal.SIGINT
        if insisted:
            raise KeyboardInterrupt
