"""A deterministic event loop: virtual time, seeded scheduling, a trace, no threads, no sockets.

Private parts of asyncio it relies on: BaseEventLoop._run_once, which it overrides, _stopping,
_task_factory, _closed and _check_closed; the fields of Handle; and Task._log_destroy_pending.
"""

import asyncio
import gc
import hashlib
import heapq
import itertools
import marshal
import struct
import sys
import warnings
import zlib
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.tasks import bug_of
from headrace.testing.simulation.machines import PROCESS, Machine, Process
from headrace.testing.simulation.simulated_network import SimulatedNetwork


class SimulatedFuture(asyncio.Future[Any]):
    """A future whose hash is its creation number instead of its address."""

    __slots__ = ("number",)

    def __init__(self, *, loop: "VirtualLoop") -> None:
        self.number = next(loop.future_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimulatedTask(asyncio.Task[Any]):
    """A task with a stable hash that knows its process; asyncio keeps tasks in sets."""

    __slots__ = ("number", "process")

    def __init__(self, coro: Any, *, loop: "VirtualLoop", name: str | None, **options: Any) -> None:
        self.process = loop.current_process(options.get("context"))
        self.number = next(loop.future_numbers)
        super().__init__(coro, loop=loop, name=name or f"task-{self.number}", **options)

    def __hash__(self) -> int:
        return self.number


def task_of(handle: Any) -> "asyncio.Task[Any] | None":
    """The task that a handle steps, or None."""
    owner = getattr(handle._callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


def described(handle: Any) -> str:
    """A name for a handle that is the same in every run; its repr contains addresses."""
    if task := task_of(handle):
        return f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '?')}"
    return str(getattr(handle._callback, "__qualname__", type(handle._callback).__name__))


_EVENT = struct.Struct("<dH")
_UNDIGESTED_BYTES_MAX = 65_536


class Trace:
    """The events of a run in order. Two runs are the same if their hashes are."""

    def __init__(self, *, readable: bool = False) -> None:
        self.lines: list[str] | None = [] if readable else None
        # The events since the last digest; the loop adds the steps of processes.
        self.undigested = bytearray()
        self._digest = hashlib.blake2b(digest_size=16)

    def note(self, now: float, *fields: Any) -> None:
        """Trace another event; lines show bytes by their checksum."""
        undigested = self.undigested
        try:
            # Version 0 depends on values only; later versions on which objects are shared.
            undigested += marshal.dumps(fields, 0)
        except ValueError:
            undigested += marshal.dumps([_text(field) for field in fields], 0)
        if self.lines is not None:
            self.lines.append(f"{now:.9f} . {' '.join(map(_text, fields))}")
        if len(undigested) > _UNDIGESTED_BYTES_MAX:
            self.hash()

    def hash(self) -> str:
        """The hash of all events up to now."""
        self._digest.update(self.undigested)
        self.undigested.clear()
        return self._digest.hexdigest()


def _text(field: object) -> str:
    if isinstance(field, bytes):
        return f"#{zlib.crc32(field):08x}+{len(field)}"
    return str(field)


# mypy: disable-error-code="override"


# Every callback takes some time, so that a loop of sleep(0) advances the time.
_STEP_S = 1e-6
_THREADS = 8
_SWAPPED_MAX = 8
_UNWOUND_MAX = 100


class Deadlock(Exception):
    """Nothing is ready and no timer is set."""


class LimitExceeded(Exception):
    """Too many events or too much virtual time: a livelock, or a task that never ends."""


class _Handle(events.Handle):
    """A callback to run soon, without the fields of asyncio's debug mode."""

    __slots__ = ()

    _repr: Any = None
    _source_traceback: Any = None
    if TYPE_CHECKING:
        _args: Any
        _callback: Any
        _context: Context

    def __init__(self, callback: Any, args: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class _TimerHandle(events.TimerHandle):
    """A callback to run later, like `_Handle`."""

    __slots__ = ()

    _repr: Any = None
    _source_traceback: Any = None
    if TYPE_CHECKING:
        _args: Any
        _callback: Any
        _context: Context
        _when: float

    def __init__(self, when: float, callback: Any, args: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


def _process_of(handle: Any) -> Process | None:
    found: Process | None = handle._context.get(PROCESS)
    return found


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of a run.

    Processes interleave at random. Within a process the order is that of call_soon, except that
    tasks woken together run in any order: no program may rely on it.
    """

    if TYPE_CHECKING:
        _stopping: bool
        _closed: bool
        _task_factory: Any

        def _check_closed(self) -> None: ...

    def __init__(
        self,
        seed: int | str = 0,
        *,
        shuffle: bool = True,
        executor_delay_s: float = 1e-3,
        trace: bool = False,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self.time_max = float("inf")
        self.events_max = 10**9
        self.future_numbers = itertools.count()
        # While an executor's job runs: its additional duration.
        self.job_s: float | None = None
        # Unhandled exceptions, in any process.
        self.errors: list[str] = []
        self.trace = Trace(readable=trace)
        # Called after every callback, with the process that ran it.
        self.on_step: Callable[[Process], None] | None = None
        self._shuffle = shuffle
        self._executor_delay_s = executor_delay_s
        self._rng = Random(f"{seed}/schedule")
        # Processes that have ready handles and are not paused.
        self._active: list[Process] = []
        self._timers: list[tuple[float, int, _TimerHandle | Callable[[], object]]] = []
        self._timer_numbers = itertools.count()
        self._process_numbers = itertools.count()
        self._graveyard: list[SimulatedTask] = []
        self.driver = self.new_process(Machine("driver", "10.0.0.1"))
        self.network = SimulatedNetwork(self, Random(f"{seed}/network"))
        self.network.add(self.driver.machine)
        self.set_exception_handler(VirtualLoop._record_error)  # type: ignore[arg-type]

    # -- time and scheduling

    def time(self) -> float:
        machine = PROCESS.get(self.driver).machine
        return machine.monotonic_offset + self.now * machine.rate

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        if self._closed:
            self._check_closed()
        handle = _Handle(callback, args, context)
        process = handle._context.get(PROCESS, self.driver)
        if process.alive:  # A dead process never runs anything again.
            ready = process.ready
            if not ready and not process.paused:
                self._active.append(process)
            ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()
        handle = _TimerHandle(when, callback, args, context)
        machine = PROCESS.get(self.driver).machine  # `when` is on the caller's clock.
        due = (when - machine.monotonic_offset) / machine.rate
        heapq.heappush(self._timers, (due, next(self._timer_numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def schedule(self, due: float, action: Callable[[], object]) -> None:
        """Call an action of the simulator itself at virtual time `due`, on no machine."""
        heapq.heappush(self._timers, (due, next(self._timer_numbers), action))

    def _enqueue(self, handle: Any) -> None:
        process = handle._context.get(PROCESS, self.driver)
        if process.alive:  # A dead process never runs anything again.
            if not process.ready and not process.paused:
                self._active.append(process)
            process.ready.append(handle)

    def _fire_timers(self) -> None:
        """Move due timers to the ready queues; if nothing is ready, jump to the next timer."""
        timers, pop = self._timers, heapq.heappop
        while True:
            while timers:
                due, _, item = timers[0]
                if not isinstance(item, _TimerHandle):
                    if due > self.now:
                        break
                    pop(timers)
                    item()
                elif item._cancelled:
                    pop(timers)
                elif due <= self.now:
                    pop(timers)
                    self._enqueue(item)
                else:
                    break
            if self._active:
                return
            if not timers:
                waiting = [f"{t.process.machine.name}:{t.get_name()}" for t in self._tasks()]
                raise Deadlock(f"seed {self.seed}: no timer is set; waiting tasks: {waiting}")
            self.now = timers[0][0]
            if self.now > self.time_max:
                raise LimitExceeded(f"seed {self.seed}: virtual time passed {self.time_max} s")

    def _run_once(self) -> None:
        """Run callbacks until stop()."""
        rng, active, timers, trace = self._rng.random, self._active, self._timers, self.trace
        undigested, pack, on_step, shuffle = (
            trace.undigested,
            _EVENT.pack,
            self.on_step,
            self._shuffle,
        )
        while not self._stopping:
            if not active or (timers and timers[0][0] <= self.now):
                self._fire_timers()
            index = int(rng() * len(active)) if len(active) > 1 else 0
            process = active[index]
            ready = process.ready
            if shuffle and len(ready) > 1:
                self._swap_steps(ready)
            handle: Any = ready.popleft()
            if not ready:
                active[index] = active[-1]
                active.pop()
            if handle._cancelled:
                continue
            now = self.now = self.now + _STEP_S
            self.events += 1
            undigested += pack(now, process.index)
            if trace.lines is not None:
                name = f"{process.machine.name}/{process.index}"
                trace.lines.append(f"{now:.9f} {name} {described(handle)}")
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._report(handle, error)
            if on_step is not None:
                on_step(process)
            if self.events > self.events_max:
                raise LimitExceeded(f"seed {self.seed}: more than {self.events_max} events")

    def _swap_steps(self, ready: deque[Any]) -> None:
        """Shuffle the task steps at the head of a queue; callbacks keep their order."""
        count = 0
        for handle in ready:
            if count == _SWAPPED_MAX or task_of(handle) is None:
                break
            count += 1
        if chosen := int(self._rng.random() * count):
            ready[0], ready[chosen] = ready[chosen], ready[0]

    def _report(self, handle: Any, error: BaseException) -> None:
        """Report an exception of a callback, like asyncio."""
        message = f"Exception in callback {described(handle)}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def note(self, *fields: object) -> None:
        """Add an event to the trace."""
        self.trace.note(self.now, *fields)

    def _record_error(self, details: dict[str, Any]) -> None:
        if self._closed:
            return  # The run is over: tasks of killed processes are being discarded.
        process = self._process_of(details)
        if process.alive:
            text = f"{details.get('message')}: {details.get('exception')!r}"
            self.errors.append(f"{self.now:.6f} {process.machine.name}: {text}")
            if process.on_bug is not None and (bug := bug_of(details)) is not None:
                process.on_bug(*bug)

    def _process_of(self, details: dict[str, Any]) -> Process:
        """The process of an error; before Python 3.12 it is reported outside of its context."""
        if (handle := details.get("handle")) is not None:
            process: Process = handle._context.get(PROCESS, self.driver)
            return process
        task = details.get("task") or details.get("future")
        return task.process if isinstance(task, SimulatedTask) else PROCESS.get(self.driver)

    # -- tasks and processes

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **kw: Any) -> Any:
        self._check_closed()
        if self._task_factory is not None:
            return super().create_task(coro, name=name, context=context, **kw)
        task = SimulatedTask(coro, loop=self, name=name, context=context, **kw)
        if not task.process.alive:  # Code that crashed in the middle of a step is being unwound.
            self._graveyard.append(task)
        return task

    def new_process(self, machine: Machine) -> Process:
        return Process(machine, next(self._process_numbers))

    def current_process(self, context: Context | None = None) -> Process:
        return PROCESS.get(self.driver) if context is None else context.get(PROCESS, self.driver)

    def set_paused(self, process: Process, paused: bool) -> None:
        """Hold back all callbacks of a process, or let them run again."""
        if process.paused != paused and process.alive:
            process.paused = paused
            if process.ready:
                (self._active.remove if paused else self._active.append)(process)

    def postpone(self, process: Process, seconds: float) -> None:
        """Delay the timers of a process, whose monotonic clock stood still."""
        for index, (due, number, item) in enumerate(self._timers):
            if isinstance(item, _TimerHandle) and _process_of(item) is process:
                self._timers[index] = (due + seconds, number, item)
        heapq.heapify(self._timers)

    def kill(self, process: Process) -> None:
        """Run no callback of a process any more.

        Its suspended tasks stay referenced: collecting them would run their `finally` blocks, which
        no crash does.
        """
        self._graveyard += [task for task in self._tasks() if task.process is process]
        process.alive = False
        process.ready.clear()
        if process in self._active:
            self._active.remove(process)

    def _tasks(self) -> list[SimulatedTask]:
        tasks = (task for task in asyncio.all_tasks(self) if isinstance(task, SimulatedTask))
        return sorted(tasks, key=lambda task: task.number)

    def dispose(self) -> None:
        """Close the loop and unwind all suspended tasks, without any effects.

        Their errors are ignored: the processes they belonged to are gone.
        """
        self.close()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Calls in their `finally` blocks must not get a newly made loop.
                events._set_running_loop(self)
                for task in self._graveyard + self._tasks():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _unwind(task.get_coro())
                self._graveyard.clear()
                self._timers.clear()
                gc.collect(0)  # No collection happened during the run, so all objects are young.
        finally:
            events._set_running_loop(None)
            sys.unraisablehook = hook

    # -- threads and signals

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """No thread: `func` runs at one moment of a virtual duration, both chosen at random.

        The jobs of an executor start in order, and at most as many at a time as it has threads.
        """
        count = getattr(executor, "_max_workers", _THREADS)
        free = PROCESS.get(self.driver).threads.setdefault(executor, [0.0] * count)
        start = max(self.now, free[0])
        end = start + self._rng.expovariate(1 / self._executor_delay_s)
        heapq.heapreplace(free, end)
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:  # Even if the waiter was cancelled, as in a thread.
            self.job_s = 0.0
            try:
                settle = partial(future.set_result, func(*args))
            except Exception as error:
                settle = partial(future.set_exception, error)
            finally:
                late_s, self.job_s = self.job_s, None
            if late_s and end in free:
                free[free.index(end)] = end + late_s
                heapq.heapify(free)
            self.call_later(end + late_s - self.now, lambda: future.done() or settle())

        self.call_later(start - self.now + (end - start) * self._rng.random(), work)
        return future

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        run = partial(self.call_soon, callback, *args, context=copy_context())
        PROCESS.get(self.driver).signals[sig] = run

    def remove_signal_handler(self, sig: int) -> bool:
        return PROCESS.get(self.driver).signals.pop(sig, None) is not None

    # -- network

    async def create_server(self, factory: Any, *address: Any, **options: Any) -> Any:
        return self.network.listen(factory, *address, **options)

    async def create_connection(self, factory: Any, *address: Any, **options: Any) -> Any:
        return await self.network.connect(factory, *address, **options)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return self.network.getaddrinfo(host, port)


def _unwind(coro: Any) -> None:
    """Close a coroutine, even if its `finally` blocks wait or raise."""
    for _ in range(_UNWOUND_MAX):
        if coro.cr_frame is None:
            return
        with suppress(BaseException):
            coro.close()
