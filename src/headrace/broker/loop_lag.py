"""The lag of the event loop: how late a timer fires, which is how long everything else waited."""

import asyncio
from collections import deque

from headrace.metrics import catalog
from headrace.metrics.registry import Registry

_PERIOD_SECONDS = 0.1
# The longest lag is that of the last minute, forgotten in slots of this length.
_SLOT_SECONDS = 5.0
_SLOTS = 12


class LoopLag:
    """Measures the lag of the running event loop ten times a second, until it is stopped."""

    def __init__(self, registry: Registry) -> None:
        self._lags = registry.histogram(catalog.LOOP_LAG)
        self._maxima: deque[float] = deque([0.0], maxlen=_SLOTS)
        self._slot_ends_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        registry.gauge(catalog.LOOP_LAG_MAX, lambda: max(self._maxima))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._slot_ends_s = loop.time() + _SLOT_SECONDS
        self._schedule(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + _PERIOD_SECONDS
        self._timer = loop.call_at(due_s, self._fired, loop, due_s)

    def _fired(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        now_s = loop.time()
        lag_s = max(now_s - due_s, 0.0)
        self._lags.observe(lag_s)
        if now_s >= self._slot_ends_s:
            # A loop that stood still for long has no other maxima to keep.
            self._maxima.append(0.0)
            self._slot_ends_s = now_s + _SLOT_SECONDS
        self._maxima[-1] = max(self._maxima[-1], lag_s)
        self._schedule(loop)
