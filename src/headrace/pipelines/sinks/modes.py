"""Which output modes a target can take. No Spark."""

from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeltaSink,
    FileSink,
    IcebergSink,
    OutputMode,
    PostgresSink,
    Sink,
    SpecError,
    TopicSink,
)


def check_mode(sink: Sink) -> None:
    """Raise SpecError for a mode that would put rows into the target more than once."""
    reason = _refusal(sink)
    if reason:
        raise SpecError(sink.place, f"sink {sink.name}: mode {sink.mode.value} {reason}")


def _refusal(sink: Sink) -> str | None:
    if sink.mode is OutputMode.APPEND:
        return None
    match sink.target:
        case TopicSink() | ConsoleSink():
            return None
        case PostgresSink(keys=keys):
            return None if keys else "needs keys, to replace the rows of batches before; name them"
        case FileSink() | DeltaSink() | IcebergSink():
            return (
                "cannot go where rows are only added; use mode append (with a watermark, if it is"
                " an aggregation), or a topic or a PostgreSQL table"
            )
