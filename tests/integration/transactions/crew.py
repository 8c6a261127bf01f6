"""Copier processes, which are killed, replaced while they are frozen, and started again."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

from headrace.testing.time_limits import scaled
from tests.fork_server import COPIER, Streams, server_of
from tests.integration.transactions.copiers.interface import Job
from tests.integration.transactions.copy_program import FENCED, Manner, arguments

_STOP_S = 60.0
_LOOK_S = 0.05


class Post:
    """One copier's place. While it is on duty, whoever ends there is followed by another."""

    def __init__(self, job: Job, manner: Manner) -> None:
        self.job = job
        self.client = manner.client
        self.runs = 0
        self.fenced = 0
        self.ousted = 0
        """Runs that were fenced though nobody was to take their place."""
        self.failed = 0
        """Runs that ended by an error, which a copier may, and should not have to."""
        self.hung = 0
        """Runs in which the client did not come back, or gave nothing for long."""
        self._manner = manner
        self._lock = threading.Lock()
        self._on_duty = True
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the post.
        self._printed = ""
        self._process = self._start()
        self._zombies: list[subprocess.Popen[str]] = []

    @property
    def output(self) -> str:
        """What its copiers have printed."""
        if not self._output.closed:
            self._output.seek(0)
            self._printed = self._output.read()
        return self._printed

    def tend(self) -> None:
        """Start another copier if the last one has ended."""
        with self._lock:
            status = self._process.poll()
            if status is not None and self._on_duty:
                self.ousted += status == FENCED
                self._count(status)
                self._process = self._start()

    def kill(self) -> None:
        self._process.kill()

    def replace_frozen(self, seconds: float) -> None:
        """Freeze a copier, let another take its place, and wake it: it must find that it is out."""
        with self._lock:
            zombie = self._process
            if zombie.poll() is not None:
                return
            zombie.send_signal(signal.SIGSTOP)
            self._process = self._start()
            self._zombies.append(zombie)
        time.sleep(seconds)
        zombie.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Let all of them end, the zombies too, and require that they do."""
        with self._lock:
            self._on_duty = False
            processes = [*self._zombies, self._process]
            for process in processes:
                process.send_signal(signal.SIGTERM)
            try:
                for process in processes:
                    self._count(process.wait(scaled(_STOP_S)))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"a copier does not end:\n{self.output}") from None
            finally:
                self._kill_all(processes)

    def give_up(self) -> None:
        """End all of them, whatever they do."""
        with self._lock:
            self._on_duty = False
            self._kill_all([*self._zombies, self._process])

    def _kill_all(self, processes: list[subprocess.Popen[str]]) -> None:
        for process in processes:
            process.kill()
            process.wait()
        self._printed = self.output
        self._output.close()

    def _start(self) -> subprocess.Popen[str]:
        self.runs += 1
        manner = replace(self._manner, seed=f"{self._manner.seed}/{self.runs}")
        streams = Streams(subprocess.DEVNULL, self._output, subprocess.STDOUT)
        server = server_of(COPIER, os.environ)
        return server.start(arguments(self.job, manner), os.environ, streams, text=True)

    def _count(self, status: int) -> None:
        self.fenced += status == FENCED
        self.hung += status == -signal.SIGALRM
        self.failed += status not in (0, FENCED, -signal.SIGKILL, -signal.SIGALRM)


class Crew:
    """All copiers of a test, looked after by a thread."""

    def __init__(self, posts: list[Post]) -> None:
        self.posts = posts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tend, name="crew", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for post in self.posts:
            if error is None:
                post.close()
            else:
                post.give_up()

    def _tend(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for post in self.posts:
                post.tend()
