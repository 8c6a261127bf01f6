"""What can go wrong between Spark and a topic, in words that say what to do."""

from headrace.errors import HeadraceError


class SourceError(HeadraceError):
    """A topic cannot be read or written the way the options ask for."""


class OptionError(SourceError):
    """An option of the data source is unknown, malformed, or contradicts another."""


class DataLoss(SourceError):
    """Records the query has not read yet are gone, and `failOnDataLoss` is true."""
