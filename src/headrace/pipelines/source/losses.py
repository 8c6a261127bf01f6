"""Records that are gone before they were read: an error, or a warning and on with the rest."""

import logging

from headrace.pipelines.source.failures import DataLoss

ADVICE = (
    "set failOnDataLoss to false to go on with what is left, or start over with a new checkpoint"
)

_log = logging.getLogger("headrace.source")


class Losses:
    """What is done about losses, as `failOnDataLoss` says."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._told: set[str] = set()

    def report(self, what: str) -> None:
        """DataLoss, or a warning the first time."""
        if self._fail:
            raise DataLoss(f"{what}; {ADVICE}")
        if what not in self._told:
            self._told.add(what)
            _log.warning("%s; the query goes on, as failOnDataLoss is false", what)
