"""Errors of building a pipeline, and of decoding a record.

Rule: a text is one line that names the part, says what is wrong, and then what to do.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from headrace.errors import HeadraceError
from headrace.pipelines.spec.model import BuildError, SourceLocation

# Loggers that write every mistake in a query as JSON to the terminal, where the error says it
# better.
_NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

# A few errors of Java are not wrapped, such as an unknown format.
SPARK_ERRORS = (PySparkException, Py4JJavaError)

_OURS = re.compile(r"^headrace\.[\w.]+: (.+)$", re.MULTILINE)
_LINE = re.compile(r"line (\d+),? pos \d+")


class DecodeError(HeadraceError):
    """A record that does not fit its declared schema, in a source that fails on errors."""


@contextmanager
def blaming(place: SourceLocation | None, part: str, advice: str = "") -> Iterator[None]:
    """Convert Spark's errors inside the block into a BuildError of this part."""
    try:
        with silenced():
            yield
    except SPARK_ERRORS as error:
        raise BuildError(place, part, essence(error), advice) from error


def essence(error: BaseException) -> str:
    """The text of a Spark error in one line: that of headrace's own error if it wraps one.

    The name of the condition, the SQL state and the plan are left to the error's cause.
    """
    java = error.java_exception if isinstance(error, Py4JJavaError) else None
    text = str(error if java is None else java.getMessage())
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    message = text.strip().split("\n", 1)[0].strip()
    message = re.sub(r"^\[[A-Z_0-9.]+\] ", "", message)
    message = re.sub(r"\.? SQLSTATE: \w+.*$", "", message)
    return message[:1].lower() + message[1:].rstrip(".") if message else type(error).__name__


def line_of(error: PySparkException) -> int | None:
    """The query line, from 1, in a Spark error; None if it has none."""
    found = _LINE.search(str(error))
    return int(found[1]) if found else None


@contextmanager
def silenced() -> Iterator[None]:
    """Suppress Spark's terminal output about an error that the caller reports."""
    with ExitStack() as stack:
        for name in _NOISY_LOGGERS:
            logger = PySparkLogger.getLogger(name)
            stack.callback(setattr, logger, "disabled", logger.disabled)
            logger.disabled = True
        yield
