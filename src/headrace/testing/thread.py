"""A broker on a thread of this process: it starts at once, and a debugger can step into it."""

import logging
import os
import threading
from collections.abc import Mapping
from errno import EADDRINUSE

from headrace.broker.app import Broker, StartError
from headrace.client.failures import TimedOut
from headrace.client.transport.thread import LoopThread
from headrace.config import broker_config
from headrace.testing.failures import BrokerError, PortTaken
from headrace.testing.log import BrokerLog, LogHandler
from headrace.testing.time_limits import scaled

_LOGGER = logging.getLogger("headrace")


class BrokerThread:
    """The broker and its event loop. It can be started again."""

    def __init__(self, log: BrokerLog, stop_timeout_s: float) -> None:
        self._log = log
        self._stop_timeout_s = stop_timeout_s
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None
        self._handler: LogHandler | None = None

    @property
    def is_running(self) -> bool:
        return self._broker is not None

    @property
    def pid(self) -> int:
        return os.getpid()

    def start(self, properties: Mapping[str, str], start_timeout_s: float) -> None:
        """Return once the broker serves."""
        broker = Broker(broker_config(properties))
        self._thread = LoopThread("headrace-broker")
        self._handler = LogHandler(self._log, self._thread.run(_thread_id()))
        _LOGGER.addHandler(self._handler)
        try:
            self._thread.run(broker.start(), scaled(start_timeout_s))
            self._broker = broker
        except TimedOut:
            raise BrokerError(f"the broker was not ready within {start_timeout_s:g} s") from None
        except StartError as error:
            cause = error.__cause__
            taken = isinstance(cause, OSError) and cause.errno == EADDRINUSE
            kind = PortTaken if taken else BrokerError
            raise kind(f"the broker did not start: {error}") from error
        finally:
            if self._broker is None:
                self._end()

    def stop(self) -> None:
        """Shut down cleanly; BrokerError if that takes too long."""
        if self._thread is None or self._broker is None:
            return
        try:
            self._thread.run(self._broker.stop(), scaled(self._stop_timeout_s))
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
        _LOGGER.removeHandler(self._handler)
        self._thread = self._broker = self._handler = None


async def _thread_id() -> int:
    return threading.get_ident()
