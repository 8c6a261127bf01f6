"""What Kafka's Java Admin client and Kafka's commands do otherwise with headrace, and why.

docs/compatibility.md has this as a table, made by tools/make_tool_differences.py. The tests of this
directory fail if a difference is not listed, or if one that is listed is gone.
"""

import re
from typing import NamedTuple


class Difference(NamedTuple):
    """A reason, the methods of Admin and the steps of test_kafka_commands.py that show it.

    `lines` is a pattern of the lines of an answer that differ; without it all of them may.
    """

    reason: str
    methods: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    lines: str = ""


DIFFERENCES: tuple[Difference, ...] = ()


def of_method(name: str) -> tuple[Difference, ...]:
    """The differences of a method of Admin."""
    return tuple(each for each in DIFFERENCES if name in each.methods)


def of_step(title: str) -> tuple[Difference, ...]:
    """The differences of a step with a command."""
    return tuple(each for each in DIFFERENCES if title in each.steps)


def differing(differences: tuple[Difference, ...]) -> str:
    """The pattern of all lines that these differences are about; none matches without any."""
    return "|".join(f"(?:{each.lines})" for each in differences) or r"(?!)"


def split(answer: str, pattern: str) -> tuple[list[str], list[str]]:
    """The lines of an answer that match a pattern, and the others."""
    matching: list[str] = []
    others: list[str] = []
    for line in answer.splitlines():
        (matching if re.search(pattern, line) else others).append(line)
    return matching, others
