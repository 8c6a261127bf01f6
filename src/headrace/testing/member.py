"""One broker of a test's cluster, which can be stopped, killed, frozen and emptied."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from headrace.net.addresses import Address
from headrace.testing.failures import BrokerError
from headrace.testing.log import BrokerLog
from headrace.testing.process import BrokerProcess

STOP_TIMEOUT_S = 30.0


class ClusterBroker:
    """A broker with a process of its own. Its ports and its data stay through all of its lives."""

    def __init__(
        self,
        node_id: int,
        *,
        address: Address,
        listens_on: Address,
        data_dir: Path,
        remove: Path | None,
        start_timeout_s: float,
        properties: Callable[["ClusterBroker"], Mapping[str, str]],
        log: BrokerLog,
        prefix: Sequence[str] = (),
    ) -> None:
        self.node_id = node_id
        self.host, self.port = address
        self.listens_on = listens_on
        """Where it listens itself: behind the network, if there is one."""
        self.data_dir = data_dir
        self.is_paused = False
        self.is_reachable = True
        """Whether no fault is between it and clients."""
        self._remove = remove
        self._start_timeout_s = start_timeout_s
        self._properties = properties
        self._log = log
        self._process = BrokerProcess(self._log, STOP_TIMEOUT_S, prefix)

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "running" if self.is_running else "not running"
        return f"<broker {self.node_id} on {self.bootstrap_servers}, {state}>"

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find it, as `127.0.0.1:PORT`."""
        return str(Address(self.host, self.port))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended; one that is paused counts as running."""
        return self._process.is_running

    @property
    def answers(self) -> bool:
        """Whether there is any sense in asking it something."""
        return self.is_running and self.is_reachable and not self.is_paused

    @property
    def log(self) -> str:
        """What it has printed, through all its restarts."""
        return self._log.text

    def clear_log(self) -> None:
        """Forget what was printed so far."""
        self._log.clear()

    def start(self) -> Self:
        """Start it and return when it is ready, which takes a majority of the controllers."""
        self.launch()
        self.wait_until_ready(self._start_timeout_s)
        return self

    def launch(self) -> None:
        """Start its process without waiting; `wait_until_ready` must follow."""
        if self.is_running:
            raise BrokerError(f"broker {self.node_id} is running already")
        self.is_paused = False
        self._process.launch(self._properties(self), self._remove)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when it has said so; BrokerError, with its log, if it does not get so."""
        self._process.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """Stop it cleanly: others lead what it led before it goes."""
        self.ask_to_stop()
        self.wait_until_stopped()

    def ask_to_stop(self) -> None:
        """Tell it to stop; `wait_until_stopped` must follow."""
        self.is_paused = False
        self._process.ask_to_stop()

    def wait_until_stopped(self) -> None:
        """Return when it has ended; BrokerError if it did not end cleanly."""
        self._process.wait_until_stopped()

    def restart(self) -> Self:
        """Stop it cleanly if it runs, and start it again."""
        self.stop()
        return self.start()

    def kill(self) -> None:
        """End its process by SIGKILL, as a crash would. `start()` brings it back."""
        self._process.kill()
        self.is_paused = False

    def pause(self) -> None:
        """Freeze its process by SIGSTOP: connections stay open and nothing is answered."""
        self._process.pause()
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on."""
        self._process.resume()
        self.is_paused = False

    @contextmanager
    def paused(self) -> Iterator[Self]:
        """Pause it for the length of a `with` statement."""
        self.pause()
        try:
            yield self
        finally:
            if self.is_running:
                self.resume()

    def wipe(self) -> None:
        """Empty its data directory, as a new disk would be. It must not be running."""
        if self.is_running:
            raise BrokerError(f"broker {self.node_id} is running; stop() or kill() it first")
        shutil.rmtree(self.data_dir, ignore_errors=True)
