"""Write docs/errors.md from the codes and exceptions that the code declares.

    python tools/make_error_docs.py

A test fails when the page is not what this would write, or when a code has no meaning in
tools/error_meanings.toml.
"""

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path

import headrace.client.errors
import headrace.errors
from headrace.errors import ErrorCode, HeadraceError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

INTRODUCTION = """\
# Errors

This page is made from the code by `tools/make_error_docs.py`.

Every error has two parts: what happened to which thing, and what to do about it. On the command
line that is one line on stderr, in Python the fields `what` and `advice` of an exception, on the
wire one of Kafka's codes, with a text where the response has a field for it. Exit statuses of
commands are in [the command line](cli.md#what-all-commands-have-in-common), what the failures of a
cluster look like in [clusters](cluster.md#what-failures-do).

## Codes

Numbers and names are Kafka's. *Retried* says whether clients send the request again by themselves,
after refreshing what they know of the cluster; such a code reaches an application only when its
timeout is over.

| Code | Name | Retried | Meaning, and what to do |
| --- | --- | --- | --- |
"""

EXCEPTIONS = """\

## Exceptions of Python

All are subclasses of `headrace.errors.HeadraceError`.

| Exception | Of | Meaning |
| --- | --- | --- |
"""

MEANINGS = tomllib.loads(PAGE.parents[1].joinpath("tools", "error_meanings.toml").read_text())


def render() -> str:
    """The whole page."""
    return INTRODUCTION + "\n".join(_codes()) + "\n" + EXCEPTIONS + "\n".join(_exceptions()) + "\n"


def _codes() -> Iterator[str]:
    for code in sorted(ErrorCode):
        retried = "yes" if code.retriable else "no"
        yield f"| {int(code)} | `{code.name}` | {retried} | {MEANINGS[code.name]} |"


def _exceptions() -> Iterator[str]:
    for module in (headrace.errors, headrace.client.errors):
        for name, kind in vars(module).items():
            is_ours = inspect.isclass(kind) and kind.__module__ == module.__name__
            if is_ours and issubclass(kind, HeadraceError):
                meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
                base = kind.__bases__[0].__name__
                yield f"| `{module.__name__}.{name}` | `{base}` | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(render())
