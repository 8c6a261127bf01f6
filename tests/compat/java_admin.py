"""Kafka's Java Admin client, driven from Python, and its results as text that can be compared."""

import re
from collections.abc import Callable
from typing import Any

from py4j.java_collections import (  # type: ignore[import-untyped]
    JavaArray,
    JavaList,
    JavaMap,
    JavaSet,
)
from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

# What differs between two brokers that answer the same: addresses, ids, times, directories.
_VARYING = (
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"port=\d+"), "port=PORT"),
    # 22 characters as in a UUID, but no words.
    (
        re.compile(
            r"(?<![\w-])(?![A-Za-z][a-z]+(?:[A-Z][a-z]+)*(?![\w-]))"
            r"(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[A-Za-z0-9_-]{22}(?![\w-])"
        ),
        "ID",
    ),
    (re.compile(r"\b1[6-9]\d{11}\b"), "TIME"),
    (re.compile(r"(?<![\w.-])(/[\w.-]+){1,12}/(data|more)\b"), "DIRECTORY"),
    (re.compile(r"@[0-9a-f]{5,8}\b"), "@HASH"),
    (re.compile(r"\b([pP](?:roducer|reviousProducer)Id\W{1,3})\d+"), r"\1NUMBER"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),
)


def without_varying(text: str) -> str:
    """A text of a broker without what is another in every broker."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text


def shown(value: Any) -> str:
    """A value of Java as text; collections without an order of their own are sorted."""
    if isinstance(value, JavaMap | dict):
        return "{" + ", ".join(sorted(f"{shown(key)}={shown(value[key])}" for key in value)) + "}"
    if isinstance(value, JavaSet):
        return "{" + ", ".join(sorted(shown(item) for item in value)) + "}"
    if isinstance(value, JavaList | JavaArray | list | tuple):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    if isinstance(value, JavaObject):
        return without_varying(str(value.toString()))
    return without_varying(str(value))


def outcome(call: Callable[[], Any]) -> str:
    """What a call gives: its result, a line for each item, or the exception behind its failure."""
    try:
        value = call()
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getClass().getSimpleName() in {"ExecutionException", "CompletionException"}:
            cause = cause.getCause()
        return f"raises {cause.getClass().getSimpleName()}"
    if isinstance(value, JavaMap | dict):
        return "\n".join(sorted(f"{shown(key)}={shown(value[key])}" for key in value))
    if isinstance(value, JavaList | JavaSet | list):
        return "\n".join(sorted(shown(item) for item in value))
    return shown(value)
