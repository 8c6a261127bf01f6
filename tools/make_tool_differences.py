"""Write the part of docs/compatibility.md about Kafka's own tools from the tests' expectations.

    python -m tools.make_tool_differences

A test fails when the page is out of date. Other tools write its other parts.
"""

import re
from pathlib import Path

from tests.compat.differences import DIFFERENCES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"

INTRODUCTION = """\
## Differences seen by Kafka's own tools

`make compat` calls every method of Kafka's Java Admin client and runs Kafka's commands step by step
(topics, settings, groups, reassignments, transactions, features, the quorum, `kafka-dump-log` with
the decoders of all files that there are, `kafka-metadata-shell`), against headrace and against
Apache Kafka 4.3.1 with the same properties. Compared are results, exit statuses and output without
what is another in every run: addresses, ids, times, CRCs, and the words of error messages. Of some
commands only some lines are compared, which `tests/compat/command_steps.py` says of each step. All
that is the same but for what this table lists. The tests fail if anything else differs, and if a
difference is gone. Made by `tools/make_tool_differences.py`."""

_REGION = re.compile(r"(?<=<!-- tools:begin -->\n).*(?=<!-- tools:end -->)", re.DOTALL)


def with_differences(page: str) -> str:
    """The page with its part about Kafka's tools renewed."""
    assert _REGION.search(page), "docs/compatibility.md has no region for tools"
    return _REGION.sub(lambda _: render(), page)


def render() -> str:
    """The part of the page between the marks."""
    rows = [("Difference", "Methods of Admin", "Steps with commands"), ("---",) * 3]
    for reason in dict.fromkeys(each.reason for each in DIFFERENCES):
        same = [each for each in DIFFERENCES if each.reason == reason]
        methods = dict.fromkeys(f"`{name}`" for each in same for name in each.methods)
        steps = dict.fromkeys(title for each in same for title in each.steps)
        rows.append((reason, ", ".join(methods), ", ".join(steps)))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return INTRODUCTION + "\n\n" + "\n".join(lines).replace("|  |", "| |") + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_differences(PAGE.read_text()))
    print(f"wrote {PAGE}")
