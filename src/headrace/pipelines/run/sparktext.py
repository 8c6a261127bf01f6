"""Reading what Spark says of a failure: the message among its stack traces. Pure."""

import re
from dataclasses import dataclass

_HEADRACE = re.compile(r"^\s*(headrace(?:\.\w+)+): (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z][A-Z0-9_]+)?)\] ")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\b.*", re.DOTALL)
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in ', re.MULTILINE)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*): (.*)$", re.MULTILINE)
_FRAGMENT = re.compile(r"== SQL[^\n]*==\n(.+?)\n[\s^]*\^", re.DOTALL)
# Frames of Spark itself, of what it calls us through, and ours.
_FOREIGN = re.compile(r"pyspark|py4j|cloudpickle|<frozen|<string>|headrace/pipelines/")
# An error of Spark's in the traceback of a function that Spark called.
_WRAPPED = ("pyspark.", "py4j.")
_ENDS = ("\n=== Streaming Query ===", "\n\nJVM stacktrace:", "\n\tat ", "\n\n== SQL", "\n== SQL")
_SENTENCES_MAX = 3
_LINE_MAX = 400


@dataclass(frozen=True, slots=True)
class PythonError:
    """An exception of a Python function that Spark called, and where it was raised."""

    text: str
    file: str | None
    line: int


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception of headrace in a traceback: the name of its class, and its text."""

    name: str
    text: str


def headrace_error(text: str) -> RaisedError | None:
    """The last of our own exceptions in a traceback."""
    # The plan that Spark prints behind it has the texts of errors that might have been.
    found = _HEADRACE.findall(text.partition(_ENDS[0])[0])
    if not found:
        return None
    name, words = found[-1]
    return RaisedError(name.rpartition(".")[2], words.strip())


def python_error(text: str) -> PythonError | None:
    """The exception at the end of a Python traceback, at the innermost line that is the user's.

    None if there is no traceback, or if what it ends with is Spark's own.
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
    """The name Spark gives an error, as UNRESOLVED_COLUMN.WITH_SUGGESTION."""
    found = _CONDITION.search(text)
    return found[1] if found else None


def sql_fragment(text: str) -> str | None:
    """The part of a query that an error quotes, on one line."""
    found = _FRAGMENT.search(text)
    return " ".join(found[1].split()).strip(". ") if found else None


def message_of(text: str) -> str:
    """What is said before stack traces, plans and quotations, without the names of Java's classes.

    The innermost message if several are wrapped into one another.
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
    """As much of a text as fits into a message, without the last full stop."""
    sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", text)
    short = " ".join(sentences[:_SENTENCES_MAX])
    short = short if len(short) <= _LINE_MAX else short[:_LINE_MAX].rsplit(" ", 1)[0] + " ..."
    return short.rstrip(". ")


def _one_line(text: str) -> str:
    return " ".join(text.split())
