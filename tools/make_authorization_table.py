"""Write the table in docs/authorization.md: each API, the rights it needs, what is denied.

    python tools/make_authorization_table.py

The rows are those of `broker/apis.py`, which tests/unit/broker/test_authorization.py tries.
"""

from collections.abc import Iterator
from pathlib import Path

from headrace.broker.access.rules import LEFT_OUT, NeededRight
from headrace.broker.apis import SERVED, ServedApi

PAGE = Path(__file__).resolve().parent.parent / "docs" / "authorization.md"
BEGIN = "<!-- table:begin, written by tools/make_authorization_table.py -->"
END = "<!-- table:end -->"


def page() -> str:
    """The page with the table as the code has it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


def table() -> str:
    """The rows of all APIs in the order of their names."""
    lines = [
        "| API | Operation | Resource | A sender without the right |",
        "|---|---|---|---|",
    ]
    for row in sorted(SERVED, key=lambda row: row.api.kafka_name):
        lines += _rows(row)
    return "\n".join(lines) + "\n"


def _rows(row: ServedApi) -> Iterator[str]:
    name = row.api.kafka_name
    if not row.access.rights:
        yield f"| {name} | | | free for all |"
    for right in row.access.rights:
        operation = " or ".join(
            [
                right.operation.name,
                *(f"{op.name} on {kind.name}" for op, kind in right.alternatives),
            ]
        )
        yield f"| {name} | {operation} | {right.resource_type.name} | {_denied(right)} |"


def _denied(right: NeededRight) -> str:
    if right.place == LEFT_OUT:
        text = "left out of the answer"
    else:
        assert right.code is not None
        text = f"`{right.code.name}` in {right.place}"
    return f"{text} ({right.note})" if right.note else text


if __name__ == "__main__":
    PAGE.write_text(page())
