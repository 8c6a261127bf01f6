"""Whatever a file says, it is a pipeline or is refused with lines: never a traceback."""

from pathlib import Path

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.pipelines.spec import yaml_file
from headrace.pipelines.spec.checks import check
from headrace.pipelines.spec.model import SpecError, SpecErrors
from headrace.pipelines.spec.table import SECTIONS

FILE = Path("/pipelines/orders.yaml")
PIECES = [*"{}[]:,&*!|>'\"%@`#-?~$ \t0é", "${A}", "<<"]
KEYS = sorted({key.name for section in SECTIONS for key in section.keys})

WHOLE = """\
pipeline: orders-by-region
broker: { bootstrap.servers: "127.0.0.1:9092", client.id: orders }
trigger: 5 seconds
sources:
  orders:
    topic: orders
    starting: latest
    decode:
      format: json
      schema: order_id BIGINT, region STRING, cents BIGINT, at TIMESTAMP
      keep: [key, { timestamp: received }]
    watermark: { column: at, delay: 1 minute }
  readings:
    topics: [a, b]
    decode: { format: avro, schema: '{"type": "record", "name": "r", "fields": []}' }
  regions: { format: csv, path: regions.csv, schema: "region STRING", options: { header: true } }
steps:
  unique_orders: { deduplicate: orders, keys: [order_id] }
  per_minute:
    sql: |
      SELECT window.start AS minute, count(*) AS orders
      FROM unique_orders GROUP BY window(at, '1 minute')
  sessions: { python: "sessions.py:sessionize", inputs: orders }
sinks:
  totals: { from: per_minute, topic: totals, key: minute, mode: update, trigger: available-now }
  lake: { from: orders, parquet: ./lake, partition_by: [region] }
  ice: { from: orders, iceberg: { table: sales.orders, catalog: { type: sql } } }
  rows: { from: orders, postgresql: { dsn: host=db, table: orders, keys: order_id } }
  screen: { from: orders, console: 5 }
dead_letters: orders-dead
"""


def judged(text: str) -> None:
    """A text is a pipeline or refused with a line for each error, and nothing else happens."""
    try:
        check(yaml_file.parse(text, FILE, {}))
    except SpecError as error:
        errors = error.errors if isinstance(error, SpecErrors) else (error,)
        assert all(problem.place is not None and problem.place.line >= 1 for problem in errors)
        assert all(str(problem).startswith(f"{FILE}:") for problem in errors)
        # YAML has more kinds of line breaks than one.
        last = len(text.splitlines()) + 2
        assert all(problem.place and problem.place.line <= last for problem in errors)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whole_file_with_lines_cut_moved_or_changed_never_ends_in_a_traceback(
    data: st.DataObject,
) -> None:
    lines = WHOLE.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at_line = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["drop", "double", "indent", "cut", "insert", "swap"]))
        line = lines[at_line]
        position = data.draw(st.integers(0, len(line)))
        match change:
            case "drop":
                del lines[at_line]
            case "double":
                lines.insert(at_line, line)
            case "indent":
                lines[at_line] = f"  {line}"
            case "cut":
                lines[at_line] = line[:position]
            case "insert":
                piece = data.draw(st.sampled_from(PIECES))
                lines[at_line] = line[:position] + piece + line[position:]
            case "swap":
                lines[at_line], lines[-1] = lines[-1], lines[at_line]
        if not lines:
            break
    judged("\n".join(lines))


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(["a", "raw", "5 minutes"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@example({"pipeline": "\x85", "sources": None, "sinks": {"broker": "\x85", "catalog": "\x85"}})
@given(
    st.fixed_dictionaries(
        {"pipeline": values, "sources": values, "sinks": values},
        optional={"steps": values, "broker": values, "dead_letters": values, "trigger": values},
    )
)
def test_any_document_is_a_pipeline_or_refused(document: object) -> None:
    judged(yaml.safe_dump(document, allow_unicode=True))
