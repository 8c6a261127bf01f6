"""What can be wrong with rows that are to be written."""

from headrace.pipelines.source.failures import SourceError


class SinkError(SourceError):
    """Rows that cannot be written; the text says which, and what to do."""
