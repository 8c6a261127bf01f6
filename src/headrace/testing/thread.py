"""A broker on a thread of this process: it starts at once, and a debugger can step into it."""

import logging
import os
import threading
from collections.abc import Mapping
from errno import EADDRINUSE

from headrace.broker.app import Broker, StartError
from headrace.client.failures import Closed, TimedOut
from headrace.client.transport.thread import LoopThread
from headrace.config import broker_config
from headrace.tasks import stop_on_bugs
from headrace.testing.failures import BrokerError, PortTaken
from headrace.testing.log import BrokerLog, LogHandler
from headrace.testing.time_limits import scaled

_LOGGER = logging.getLogger("headrace")


class BrokerThread:
    """The broker and its event loop. It can be started again.

    A bug in the broker ends it, and fails its `stop`, as the exit of a process would.
    """

    def __init__(self, log: BrokerLog, stop_timeout_s: float) -> None:
        self._log = log
        self._stop_timeout_s = stop_timeout_s
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None
        self._handler: LogHandler | None = None
        self._bug: tuple[str, BaseException] | None = None

    @property
    def is_running(self) -> bool:
        return self._broker is not None and self._bug is None

    @property
    def pid(self) -> int:
        return os.getpid()

    def start(self, properties: Mapping[str, str], start_timeout_s: float) -> None:
        """Return once the broker serves."""
        broker = Broker(broker_config(properties))
        if self._thread is not None:
            self._end()  # A bug has ended it.
        self._bug = None
        self._thread = LoopThread("headrace-broker")
        stop_on_bugs(self._thread.loop, self._on_bug)
        self._handler = LogHandler(self._log, self._thread.run(_thread_id()))
        _LOGGER.addHandler(self._handler)
        try:
            self._thread.run(broker.start(), scaled(start_timeout_s))
            self._broker = broker
        except TimedOut:
            raise BrokerError(f"the broker was not ready within {start_timeout_s:g} s") from None
        except Closed:
            raise self._bug_error() from None
        except StartError as error:
            cause = error.__cause__
            taken = isinstance(cause, OSError) and cause.errno == EADDRINUSE
            kind = PortTaken if taken else BrokerError
            raise kind(f"the broker did not start: {error}") from error
        finally:
            if self._broker is None:
                self._end()

    def stop(self) -> None:
        """Shut down cleanly; BrokerError if that takes too long, or a bug has ended the broker."""
        if self._thread is None or self._broker is None:
            return
        try:
            if self._bug is not None:
                raise self._bug_error()
            self._thread.run(self._broker.stop(), scaled(self._stop_timeout_s))
        except Closed:
            raise self._bug_error() from None
        except TimedOut:
            raise BrokerError(
                f"the broker did not stop within {self._stop_timeout_s:g} s; it said:\n"
                f"{self._log.tail(100)}"
            ) from None
        finally:
            self._end()

    def _end(self) -> None:
        assert self._thread is not None
        assert self._handler is not None
        self._thread.close()
        self._thread.join()
        _LOGGER.removeHandler(self._handler)
        self._thread = self._broker = self._handler = None

    def _on_bug(self, where: str, error: BaseException) -> None:
        """End the loop with all that runs on it: nobody may be answered any more."""
        if self._bug is None and self._thread is not None:
            self._bug = (where, error)
            if self._broker is not None:
                self._broker.abandon()
            self._thread.close()

    def _bug_error(self) -> BrokerError:
        assert self._bug is not None
        where, error = self._bug
        failure = BrokerError(
            f"the broker had ended by itself, of a bug in {where}; it said:\n{self._log.tail(100)}"
        )
        failure.__cause__ = error
        return failure


async def _thread_id() -> int:
    return threading.get_ident()
