"""Errors between Spark and a topic, with advice."""

import logging

from headrace.errors import HeadraceError


class SourceError(HeadraceError):
    """A topic cannot be read or written as the options demand."""


class OptionError(SourceError):
    """An option of the data source is unknown, malformed, or contradicts another."""


class DataLoss(SourceError):
    """Records that the query has not read are gone, and `failOnDataLoss` is true."""


ADVICE = (
    "set failOnDataLoss to false to go on with what is left, or start over with a new checkpoint"
)

_log = logging.getLogger("headrace.source")


class LossHandling:
    """The treatment of losses, according to `failOnDataLoss`."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._warned: set[str] = set()

    def report(self, what: str) -> None:
        """Raise DataLoss, or log a warning the first time."""
        if self._fail:
            raise DataLoss(f"{what}; {ADVICE}")
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s; the query goes on, as failOnDataLoss is false", what)


class SinkError(SourceError):
    """Rows that cannot be written; the text says which, and what to do."""
