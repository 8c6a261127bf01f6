"""The warnings and errors that brokers of a run write to their logs."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager


class LogLines(logging.Handler):
    """Keeps what is logged at WARNING or above while `caught` lasts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def mention(self, thing: str) -> bool:
        """Whether a line has the name of a thing."""
        pattern = re.compile(rf"(?<![\w.-]){re.escape(thing)}(?![\w-])")
        return any(pattern.search(line) for line in self.lines)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch warnings even where logging is disabled, and show no more than otherwise."""
        logger = logging.getLogger("headrace")
        disabled, propagates = logger.manager.disable, logger.propagate
        logger.addHandler(self)
        logger.propagate = propagates and disabled < logging.WARNING
        logging.disable(min(disabled, logging.INFO))
        try:
            yield
        finally:
            logging.disable(disabled)
            logger.propagate = propagates
            logger.removeHandler(self)
