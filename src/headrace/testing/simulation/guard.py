"""Keeps real time, entropy, threads, sockets and files out of a simulation.

Two layers, because Python has no single place to stand in the way: attributes of modules
(`time.time`, `os.urandom` and so on) are replaced during a run, and an audit hook sees sockets,
threads, processes and files opened for writing, however they were imported.
"""

import contextlib
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.clock import SystemClock

# Modules that may read the time and randomness; they get those of the host they run on. A client
# makes its own clock and random generator, and a broker is given its own.
ALLOWED = ("logging", "headrace.client", "headrace.clock")

_AUDITED = frozenset(
    {
        "socket.__new__",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "subprocess.Popen",
        "os.system",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.exec",
        "time.sleep",
        "_thread.start_new_thread",
        "_thread.start_joinable_thread",
    }
)


class HostEnvironment(Protocol):
    """The virtual clocks and entropy for code on a simulated host."""

    rng: random.Random

    def wall(self) -> float: ...
    def monotonic(self) -> float: ...


class NondeterminismError(BaseException):
    """Use of a real resource in a simulation; not an Exception, lest it be handled."""


class _Hook:
    """The active guard; an audit hook can never be removed, so there is one for all guards."""

    guard: "Guard | None" = None
    installed = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    guard = _Hook.guard
    if guard is not None:
        if event in _AUDITED:
            guard.report(event, sys._getframe(1))
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
            guard.report(f"open({args[0]!r}) for writing", sys._getframe(1))


class Guard:
    """Makes forbidden calls raise, except in modules that may use the host's clock and entropy."""

    def __init__(self, *, allowed: tuple[str, ...] = ALLOWED) -> None:
        self.violations: list[str] = []
        self._allowed = allowed
        self._modules: dict[str, bool] = {}
        self._host: Callable[[], HostEnvironment]

    def report(self, what: str, frame: Any) -> None:
        """Note a forbidden call and raise; it fails the run even if the program catches it."""
        text = f"{what} at {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        self.violations.append(text)
        raise NondeterminismError(text)

    def check(self) -> None:
        if self.violations:
            raise NondeterminismError("; ".join(self.violations))

    @contextlib.contextmanager
    def active(self, seed: int | str, host: Callable[[], HostEnvironment]) -> Iterator[None]:
        """Patch modules and audit calls; `host` returns the host on which the calling code runs."""
        if not _Hook.installed:
            sys.addaudithook(_audit)
            _Hook.installed = True
        self._host, state = host, random.getstate()
        bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        saved: list[tuple[Any, str, Any]] = []
        random.seed(f"{seed}/global")  # Hosts share the state of `random`.
        for module, name, virtual in list(self._patches()):
            saved.append((module, name, getattr(module, name)))
            setattr(module, name, self._replacement(f"{module.__name__}.{name}", virtual))
        saved.append((random.Random, "seed", random.Random.seed))
        random.Random.seed = self._seeding()  # type: ignore[method-assign]
        for name, virtual in self._clock():
            saved.append((SystemClock, name, getattr(SystemClock, name)))
            setattr(SystemClock, name, virtual)
        _Hook.guard = self
        try:
            yield
        finally:
            _Hook.guard = None
            for module, name, original in saved:
                setattr(module, name, original)
            random.setstate(state)
            sys.dont_write_bytecode = bytecode

    def _is_allowed(self, frame: Any) -> bool:
        module = str(frame.f_globals.get("__name__", ""))
        known = self._modules.get(module)
        if known is None:
            known = any(module == name or module.startswith(name + ".") for name in self._allowed)
            self._modules[module] = known
        return known

    def _replacement(self, name: str, virtual: Callable[..., Any] | None) -> Callable[..., Any]:
        def replacement(*args: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            if virtual is None or not self._is_allowed(frame):
                self.report(name, frame)
            assert virtual is not None
            return virtual(*args, **options)

        return replacement

    def _patches(self) -> Iterator[tuple[Any, str, Callable[..., Any] | None]]:
        for module in (os, random):
            for name in ("urandom", "getrandom", "_urandom"):
                if hasattr(module, name):
                    yield module, name, lambda count, *_: self._host().rng.randbytes(count)
        yield time, "time", lambda: self._host().wall()
        yield time, "time_ns", lambda: int(self._host().wall() * 1e9)
        for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
            yield time, name, lambda: self._host().monotonic()
            yield time, name + "_ns", lambda: int(self._host().monotonic() * 1e9)
        yield os, "getpid", lambda: 1
        yield time, "clock_gettime", None
        yield time, "sleep", None  # It raises an audit event only since Python 3.13,
        yield threading.Thread, "start", None  # and this one since 3.12.
        yield uuid, "_generate_time_safe", None  # uuid1 uses it.

    def _clock(self) -> Iterator[tuple[str, Callable[[SystemClock], float]]]:
        """The time of the clients' clock, which may read it."""
        yield "now_ms", lambda _: int(self._host().wall() * 1e9) // 1_000_000
        yield "monotonic", lambda _: self._host().monotonic()

    def _seeding(self) -> Callable[..., None]:
        """A replacement for Random.seed that does not fall back on entropy."""
        original = random.Random.seed

        def seed(rng: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None:
                # The frame above is Random.__init__; the one above that is the caller.
                frame = sys._getframe(2)
                if not self._is_allowed(frame):
                    self.report("random.Random() without a seed", frame)
                a = self._host().rng.getrandbits(64)
            original(rng, a, version)

        return seed
