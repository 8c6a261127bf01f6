"""The reason why a pipeline failed, as one line from Spark's messages: part, problem, advice."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.client.errors import BufferExhausted, TimedOut, Unreachable
from headrace.errors import ConfigError, HeadraceError, KafkaError, with_advice
from headrace.net.client_connection import ConnectionFailed
from headrace.pipelines.locations import local_directory, notes_directory, query_name
from headrace.pipelines.spec.model import (
    BuildError,
    Pipeline,
    PythonStep,
    Sink,
    SqlStep,
    Step,
    TopicSource,
)

_HEADRACE = re.compile(r"^\s*(headrace(?:\.\w+)+): (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z][A-Z0-9_]+)?)\] ")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\b.*", re.DOTALL)
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in ', re.MULTILINE)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*): (.*)$", re.MULTILINE)
_FRAGMENT = re.compile(r"== SQL[^\n]*==\n(.+?)\n[\s^]*\^", re.DOTALL)
# Frames of Spark itself, of the libraries it calls through, and of headrace.
_FOREIGN = re.compile(r"pyspark|py4j|cloudpickle|<frozen|<string>|headrace/pipelines/")
# An error of Spark in the traceback of a function that Spark called.
_WRAPPED = ("pyspark.", "py4j.")
_ENDS = ("\n=== Streaming Query ===", "\n\nJVM stacktrace:", "\n\tat ", "\n\n== SQL", "\n== SQL")
_SENTENCES_MAX = 3
_LINE_MAX = 400


@dataclass(frozen=True, slots=True)
class PythonError:
    """An exception of a Python function that Spark called, and the line that raised it."""

    text: str
    file: str | None
    line: int


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception of headrace in a traceback: the name of its class, and its text."""

    name: str
    text: str


def headrace_error(text: str) -> RaisedError | None:
    """The last exception of headrace in a traceback."""
    # The plan that Spark prints behind it contains texts of errors that did not happen.
    found = _HEADRACE.findall(text.partition(_ENDS[0])[0])
    if not found:
        return None
    name, words = found[-1]
    return RaisedError(name.rpartition(".")[2], words.strip())


def python_error(text: str) -> PythonError | None:
    """The exception at the end of a Python traceback, and the innermost line of the user's code.

    None if there is no traceback, or if the exception is Spark's own.
    """
    start = text.rfind("Traceback (most recent call last):")
    if start < 0:
        return None
    trace = text[start:]
    for end in _ENDS[:3]:
        trace = trace.split(end)[0]
    raised = _RAISED.findall(trace)
    if not raised or raised[-1][0].startswith(_WRAPPED):
        return None
    own = [(file, line) for file, line in _FRAME.findall(trace) if not _FOREIGN.search(file)]
    file, line = own[-1] if own else (None, "0")
    kind, words = raised[-1]
    return PythonError(f"{kind.rpartition('.')[2]}: {_one_line(words)}", file, int(line))


def condition_of(text: str) -> str | None:
    """The name of a Spark error condition, such as UNRESOLVED_COLUMN.WITH_SUGGESTION."""
    found = _CONDITION.search(text)
    return found[1] if found else None


def sql_fragment(text: str) -> str | None:
    """The part of the query that an error quotes, on one line."""
    found = _FRAGMENT.search(text)
    return " ".join(found[1].split()).strip(". ") if found else None


def message_of(text: str) -> str:
    """The text before stack traces, plans and quotations, without names of Java classes.

    Of nested messages the innermost.
    """
    for end in _ENDS:
        text = text.split(end, maxsplit=1)[0]
    named = _CONDITION.search(text)
    if named is not None:
        text = text[named.end() :]
    else:
        text = re.sub(r"^.*?\b(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ", "", text, flags=re.S)
        text = re.sub(r"^[A-Z]\w*(?:Exception|Error): ", "", text)
    return _one_line(_SQL_STATE.sub("", text))


def first_sentences(text: str) -> str:
    """The first sentences of a text that fit into a message, without the last full stop."""
    sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", text)
    short = " ".join(sentences[:_SENTENCES_MAX])
    short = short if len(short) <= _LINE_MAX else short[:_LINE_MAX].rsplit(" ", 1)[0] + " ..."
    return short.rstrip(". ")


def _one_line(text: str) -> str:
    return " ".join(text.split())


# The reason why a pipeline failed, in one line: pipeline, part, problem, advice.
#
# Spark reports a failure in a hundred lines, most about itself. Pure: texts in, texts out.


Part = Sink | TopicSource | None

LOG_FILE = "spark.log"

_START_OVER = "start over with a new checkpoint"


class PipelineFailed(HeadraceError):
    """A run that ended with an error. The text names the pipeline and its part, and a remedy.

    `passes` says that a retry of the query may well succeed, `outage` that it will once its brokers
    answer again.
    """

    def __init__(self, text: str, *, passes: bool = False, outage: bool = False) -> None:
        super().__init__(text)
        self.passes = passes
        self.outage = outage


class CheckpointMismatch(PipelineFailed):
    """A checkpoint that belongs to a different query."""


@dataclass(frozen=True, slots=True)
class _ErrorRule:
    """A rule that explains messages of Spark or Java. `what` may use the groups of the pattern."""

    pattern: re.Pattern[str]
    what: str
    remedy: str


def _rule(pattern: str, what: str, remedy: str) -> _ErrorRule:
    return _ErrorRule(re.compile(pattern, re.DOTALL), what, remedy)


_RULES = (
    _rule(
        r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]",
        r"its checkpoint is that of a query with \1 sources, and it has \2",
        "take back the change, or begin anew with `{reset}`",
    ),
    _rule(
        r"STATE_STORE_\w*(?:SCHEMA|FORMAT|CHECKPOINT)\w*|NOT_MATCH_IN_STATE_METADATA"
        r"|Provided schema doesn't match to the schema for existing state",
        "its checkpoint has the state of other groups, joins or keys than the query has now",
        "take back the change, or begin anew with `{reset}`",
    ),
    _rule(
        r"Malformed log file|Incomplete log file|batch \d+ doesn't exist|STDS?_FAILED_TO_READ"
        r"|CANNOT_LOAD_STATE_STORE|FAILED_READ_(?:DELTA|SNAPSHOT)_FILE|UNEXPECTED_FILE_SIZE",
        "its checkpoint {checkpoint} is incomplete or damaged",
        "restore it from a copy, or begin anew with `{reset}`",
    ),
    _rule(
        r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming jobs detected",
        "another process uses its checkpoint {checkpoint} at the same time",
        "run each pipeline once, and give each its own `checkpoint`",
    ),
    _rule(
        r"No space left on device|Disk quota exceeded",
        "a disk is full",
        "make room where the checkpoint {checkpoint}, the output and Spark's spark.local.dir are,"
        " and run it again: it goes on where it was",
    ),
    _rule(
        r"OutOfMemoryError|Java heap space|GC overhead limit",
        "Spark ran out of memory",
        "give it more with `--conf spark.driver.memory=4g`, or less at once with the source's"
        " option maxOffsetsPerTrigger",
    ),
    _rule(
        r"Mkdirs failed to create (\S+)|(?:Permission denied|Read-only file system)",
        r"Spark may not write \1",
        "let the user who runs it write there, or choose another `checkpoint` or path",
    ),
    _rule(
        r"\[PATH_NOT_FOUND\] Path does not exist: (\S+?)\.?(?:\s|$)",
        r"there is no file or directory \1",
        "see the `path` of its sources",
    ),
    _rule(
        r"ModuleNotFoundError: No module named '([^']+)'",
        r"Python has no module \1 where Spark's workers run",
        "install the package that brings it, on every machine of the cluster",
    ),
    _rule(
        r"\[DATA_SOURCE_NOT_FOUND\].*?data source: ([\w.]+?)\.?(?:\s|$)",
        r"Spark knows no format \1",
        "see the `format` of its sources, and whether the package that brings it is installed",
    ),
    _rule(
        r"\[STREAMING_OUTPUT_MODE\.UNSUPPORTED_OPERATION\] Invalid streaming output mode: (\w+)",
        r"groups never end without a watermark, so a sink with mode \1 would wait for ever",
        "give the source a `watermark` and group by a window of its column, or the sink"
        " `mode: update`",
    ),
    _rule(
        r"Python worker exited unexpectedly",
        "a Python process of Spark's died",
        "see the end of {log}: often the machine is out of memory",
    ),
    _rule(
        r"Could not parse Master URL: '?([^\s']+)",
        r"Spark knows no master \1",
        "give --master as local[*], spark://HOST:PORT, yarn or k8s://URL",
    ),
    _rule(
        r"All masters are unresponsive|getServletHandlers on a running MetricsSystem",
        "no Spark master answers",
        "see --master, and whether it runs; {log} has what Spark says",
    ),
    _rule(
        r"JAVA_GATEWAY_EXITED|Java gateway process exited",
        "Spark's Java process did not start",
        "see {log} for the reason",
    ),
    _rule(
        r"Py4JNetworkError|Answer from Java side is empty|Connection refused|Gateway is down",
        "Spark's Java process died",
        "see the end of {log}: often the machine is out of memory",
    ),
)


# The errors of a client whose brokers did not answer in time.
_OUTAGES = (Unreachable, TimedOut, ConnectionFailed)
_OUTAGE_NAMES = {error.__name__ for error in (*_OUTAGES, BufferExhausted)}

# Spark gives its Python processes ten seconds to start, whatever else the machine does.
_TOO_SLOW = re.compile(r"Python worker failed to connect back")


def explain(pipeline: Pipeline, part: Part, error: BaseException) -> PipelineFailed:
    """The failure of a query of a pipeline, or of its start, as one line."""
    if isinstance(error, PipelineFailed):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, BuildError):
        return PipelineFailed(_built(pipeline, error))
    if isinstance(error, HeadraceError):
        line = error.detail or str(error) if isinstance(error, KafkaError) else str(error)
        line = _with_place(pipeline, part, line)
        return PipelineFailed(line, outage=isinstance(error, _OUTAGES))
    known = headrace_error(text)
    if known is not None:
        line = _with_place(pipeline, part, _without_code(known.text))
        return PipelineFailed(line, outage=known.name in _OUTAGE_NAMES)
    if _TOO_SLOW.search(text):
        what = "a Python process of Spark's took too long to start; let the machine have less to do"
        return PipelineFailed(f"{label(pipeline, part)}: {what}", passes=True)
    return PipelineFailed(_explained(pipeline, part, text))


def mismatch(pipeline: Pipeline, part: Sink | TopicSource, changes: Sequence[str]) -> HeadraceError:
    """The error of a query that has changed since its checkpoint was made."""
    listed = ", ".join(changes)
    return CheckpointMismatch(
        f"{label(pipeline, part)}: its checkpoint belongs to another query ({listed}); take the"
        f" change back, begin anew with `{reset_command(pipeline, part)}`, or go on all the same"
        " with --allow-changes"
    )


def label(pipeline: Pipeline, part: Part, step: Step | None = None) -> str:
    """The name of a pipeline and its part, with the place of the declaration."""
    named: list[str] = [f"pipeline {pipeline.name}"]
    if step is not None:
        named.append(f"step {step.name}")
    elif isinstance(part, Sink):
        named.append(f"sink {part.name}")
    elif part is not None:
        named.append(f"source {part.name}")
    found = step or part
    where = f" ({found.place})" if found is not None and found.place else ""
    return ", ".join(named) + where


def reset_command(pipeline: Pipeline, part: Part) -> str:
    """The command that resets a query."""
    file = pipeline.place.file if pipeline.place else "FILE"
    return f"headrace pipeline reset {file}" + (f" --sink {query_name(part)}" if part else "")


def log_path(pipeline: Pipeline) -> Path:
    """The file with Spark's own messages of a run."""
    return notes_directory(pipeline) / LOG_FILE


def _built(pipeline: Pipeline, error: BuildError) -> str:
    """The error of a part that could not be built, in one line."""
    text = " ".join(with_advice(error.reason, error.advice).split())
    where = f" ({error.place})" if error.place else ""
    return f"pipeline {pipeline.name}, {error.part}{where}: {text}"


def _with_place(pipeline: Pipeline, part: Part, text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    # The data source does not know pipelines, nor how to reset their checkpoints.
    line = line.replace(_START_OVER, f"begin anew with `{reset_command(pipeline, part)}`")
    if line.startswith(f"pipeline {pipeline.name}"):
        return line
    return f"{label(pipeline, part)}: {line}"


def _without_code(text: str) -> str:
    """A protocol error's text without its code, if more words follow."""
    return re.sub(r"^[A-Z][A-Z_]{4,}: ", "", text)


def _explained(pipeline: Pipeline, part: Part, text: str) -> str:
    root = local_directory(str(notes_directory(pipeline).parent))
    words = {
        "reset": reset_command(pipeline, part),
        "checkpoint": f"{root}/{query_name(part)}" if part else str(root),
        "log": str(log_path(pipeline)),
    }
    for rule in _RULES:
        found = rule.pattern.search(text)
        if found is not None:
            what = found.expand(rule.what).strip().format(**words)
            return f"{label(pipeline, part)}: {what}; {rule.remedy.format(**words)}"
    for reading in (_python_failure, _sql_failure):
        line = reading(pipeline, part, text)
        if line is not None:
            return line
    what = first_sentences(message_of(text)) or text.partition(":")[0]
    return f"{label(pipeline, part)}: {what}; see {words['log']} for all that Spark says"


def _python_failure(pipeline: Pipeline, part: Part, text: str) -> str | None:
    """The failure for an exception of the user's function, at the line that raised it."""
    found = python_error(text)
    if found is None:
        return None
    steps = [step for step in pipeline.steps if isinstance(step, PythonStep)]
    named = [step for step in steps if found.file and found.file.endswith(_file_of(step))]
    step = named[0] if len(named) == 1 else None
    where = f"{Path(found.file).name}:{found.line}: " if found.file else ""
    remedy = "correct the function, and run it again: it goes on where it was"
    return f"{label(pipeline, part, step)}: {where}{found.text}; {remedy}"


def _file_of(step: PythonStep) -> str:
    if isinstance(step.function, str):
        name = step.function.rpartition(":")[0]
        return name if name.endswith(".py") else name.replace(".", "/") + ".py"
    code: Callable[..., object] = step.function
    return getattr(getattr(code, "__code__", None), "co_filename", "\0")


def _sql_failure(pipeline: Pipeline, part: Part, text: str) -> str | None:
    """The failure for a Spark error condition: in the step whose text it quotes, if any."""
    condition = condition_of(text)
    if condition is None:
        return None
    fragment = sql_fragment(text)
    named = [
        step
        for step in pipeline.steps
        if fragment and isinstance(step, SqlStep) and fragment in " ".join(step.sql.split())
    ]
    what = first_sentences(message_of(text))
    remedy = "correct the query, and check it with `headrace pipeline check --plan`"
    return f"{label(pipeline, part, named[0] if len(named) == 1 else None)}: {what}; {remedy}"


@contextmanager
def spark_errors_explained(pipeline: Pipeline, part: Part) -> Iterator[None]:
    """Convert errors of Spark, or of headrace inside it, into a PipelineFailed of this part.

    A ConfigError about the settings stays as it is.
    """
    try:
        from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415
            Py4JError,
        )
        from pyspark.errors import PySparkException  # noqa: PLC0415
    except ImportError:
        # The code that needs Spark reports that it is missing.
        yield
        return
    try:
        yield
    except ConfigError:
        raise
    except (HeadraceError, PySparkException, Py4JError, OSError) as error:
        raise explain(pipeline, part, error) from error
