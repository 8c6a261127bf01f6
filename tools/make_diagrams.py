"""Write the pictures of docs/concepts.md, docs/images/*.svg.

    python tools/make_diagrams.py

Each picture has a background of its own and follows the colours of the reader's system, so that it
reads on light and on dark pages. A test fails when a file is not what this would write.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"

STYLE = """\
    .card { fill: #ffffff; stroke: #d0d7de; }
    .box { fill: #eef4fb; stroke: #3b6ea8; }
    .store { fill: #fdf3e1; stroke: #a8742a; }
    .outside { fill: #f3f4f6; stroke: #6b7280; }
    .line { stroke: #4b5563; fill: none; stroke-width: 1.5; }
    .back { stroke-dasharray: 5 4; }
    .head { fill: #4b5563; }
    text { fill: #1f2937; font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; }
    .small { font-size: 12px; fill: #4b5563; }
    .name { font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #161b22; stroke: #30363d; }
      .box { fill: #16263b; stroke: #6ea8e6; }
      .store { fill: #2f2412; stroke: #d9a352; }
      .outside { fill: #22272e; stroke: #8b949e; }
      .line { stroke: #9aa4b1; }
      .head { fill: #9aa4b1; }
      text { fill: #e6edf3; }
      .small { fill: #a9b4c0; }
    }
"""

LINE_HEIGHT = 18


@dataclass
class Diagram:
    """A picture of boxes and arrows, at places that are given in pixels."""

    title: str
    description: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(
        self, left: int, top: int, width: int, height: int, *lines: str, kind: str = "box"
    ) -> None:
        """A box with its name in the first line, and small text below."""
        self.parts.append(
            f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="8"/>'
        )
        middle = top + height / 2 - (len(lines) - 1) * LINE_HEIGHT / 2 + 5
        for number, line in enumerate(lines):
            style = "name" if number == 0 else "small"
            self._text(left + width // 2, middle + number * LINE_HEIGHT, line, style, "middle")

    def note(self, left: int, top: int, *lines: str, anchor: str = "start") -> None:
        """Small text without a box."""
        for number, line in enumerate(lines):
            self._text(left, top + number * LINE_HEIGHT, line, "small", anchor)

    def arrow(
        self, points: Sequence[tuple[int, int]], label: str = "", *, back: bool = False
    ) -> None:
        """An arrow along points, with a label above the middle of its longest part."""
        path = " ".join(f"{x},{y}" for x, y in points)
        style = "line back" if back else "line"
        self.parts.append(f'<polyline class="{style}" marker-end="url(#head)" points="{path}"/>')
        if label:
            pairs = list(pairwise(points))
            (x1, y1), (x2, y2) = max(
                pairs, key=lambda pair: sum(abs(a - b) for a, b in zip(*pair, strict=True))
            )
            if y1 == y2:
                self._text((x1 + x2) // 2, y1 - 7, label, "small", "middle")
            else:
                self._text(x1 + 8, (y1 + y2) // 2 + 4, label, "small", "start")

    def _text(self, x: float, y: float, text: str, style: str, anchor: str) -> None:
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="{style}" {place}>{escape(text)}</text>')

    def svg(self) -> str:
        """The whole file."""
        body = "\n".join(f"  {part}" for part in self.parts)
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" \
width="{self.width}" height="{self.height}" role="img" aria-labelledby="title description">
  <title id="title">{escape(self.title)}</title>
  <desc id="description">{escape(self.description)}</desc>
  <style>
{STYLE}  </style>
  <defs>
    <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" \
orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker>
  </defs>
  <rect class="card" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="12"/>
{body}
</svg>
"""


def write_path() -> Diagram:
    picture = Diagram(
        "The way of a record from a producer to its acknowledgement",
        "A producer collects records into batches and sends them to the leader of the partition,"
        " which checks and appends them; followers copy them; when all in-sync replicas have"
        " them, the leader answers.",
        880,
        330,
    )
    picture.box(24, 60, 150, 84, "Producer", "serialize, partition,", "collect into batches")
    picture.box(
        300,
        40,
        250,
        124,
        "Leader of the partition",
        "check the batch and its CRC,",
        "sequence numbers, rights, quota;",
        "give offsets, append as it came",
    )
    picture.box(300, 226, 250, 66, "Log of the leader", "segment files, page cache", kind="store")
    picture.box(676, 40, 180, 76, "Follower", "fetches from its log end", "appends the same bytes")
    picture.box(676, 150, 180, 76, "Follower", "fetches from its log end", "appends the same bytes")
    picture.arrow([(174, 84), (300, 84)], "Produce")
    picture.arrow([(300, 124), (174, 124)], "answer", back=True)
    picture.arrow([(425, 164), (425, 226)], "append")
    picture.arrow([(676, 66), (550, 66)], "Fetch")
    picture.arrow([(550, 96), (676, 96)], "batches", back=True)
    picture.arrow([(676, 188), (613, 188), (613, 140), (550, 140)])
    picture.note(
        24,
        190,
        "acks=0: no answer",
        "acks=1: after the append",
        "acks=all: when every replica",
        "in sync has the batch",
    )
    picture.note(
        676,
        256,
        "A follower's next fetch says",
        "how far it has got. The least of",
        "these is the high watermark.",
    )
    return picture


def read_path() -> Diagram:
    picture = Diagram(
        "The way of a record from the log to a consumer",
        "A consumer fetches from the leader, or from a replica in its own rack; the broker answers"
        " with whole batches up to the high watermark, or waits until there are enough bytes.",
        880,
        270,
    )
    broker = ("Broker: Fetch", "session: only what changed", "waits for fetch.min.bytes")
    log = ("Log", "index: offset to position", "batches as they were written")
    consumer = ("Consumer", "positions, fetches ahead,", "decodes at poll()")
    picture.box(24, 40, 210, 84, *log, kind="store")
    picture.box(334, 40, 210, 84, *broker)
    picture.box(664, 40, 192, 84, *consumer)
    picture.box(664, 190, 192, 56, "Application", "rows, or Arrow columns", kind="outside")
    picture.arrow([(234, 82), (334, 82)], "read")
    picture.arrow([(664, 70), (544, 70)], "Fetch")
    picture.arrow([(544, 100), (664, 100)], "whole batches", back=True)
    picture.arrow([(760, 124), (760, 190)], "poll()")
    picture.note(
        334,
        170,
        "Answers go up to the high watermark,",
        "with read_committed up to the last stable offset.",
    )
    picture.note(
        24, 170, "Asked of the leader, or of a", "replica in the consumer's rack", "(client.rack)."
    )
    return picture


def replication() -> Diagram:
    picture = Diagram(
        "Replicas of a partition, and what is committed",
        "The leader's log ends at offset 9, the followers' at 8 and 5. With all three in sync the"
        " high watermark is 5; when the slow one has left the in-sync replicas it is 8.",
        880,
        320,
    )
    picture.note(24, 34, "offsets")
    for offset in range(9):
        picture.note(226 + 58 * offset, 34, str(offset), anchor="middle")
    rows = [("Leader", 9), ("Follower, in sync", 8), ("Follower, behind", 5)]
    for row, (name, end) in enumerate(rows):
        top = 52 + 66 * row
        picture.box(24, top, 160, 46, name, f"broker {row + 1}")
        for offset in range(end):
            kind = "store" if offset < 5 else "outside"
            picture.box(200 + 58 * offset, top, 52, 46, kind=kind)
        picture.note(748, top + 28, f"log end {end}")
    picture.arrow([(487, 284), (487, 238)])
    picture.note(498, 262, "high watermark while all three are in sync")
    picture.note(
        24,
        262,
        "Below the high watermark records are committed:",
        "acknowledged with acks=all, visible to consumers.",
    )
    picture.note(498, 298, "8, once the one behind has left the in-sync replicas")
    return picture


def group_rebalance() -> Diagram:
    picture = Diagram(
        "A rebalance of a consumer group",
        "A new member joins; the coordinator tells the others at their next heartbeat, all join"
        " again, the leader of the group assigns the partitions, the coordinator hands them out.",
        880,
        400,
    )
    lanes = {"Member A": 110, "Member B, new": 360, "Coordinator": 620}
    for name, middle in lanes.items():
        picture.box(
            middle - 80, 20, 160, 40, name, kind="store" if name == "Coordinator" else "box"
        )
        picture.parts.append(
            f'<line class="line back" x1="{middle}" y1="60" x2="{middle}" y2="384"/>'
        )
    one, two, group = lanes.values()
    steps = [
        (two, group, "JoinGroup"),
        (one, group, "Heartbeat"),
        (group, one, "REBALANCE_IN_PROGRESS"),
        (one, group, "JoinGroup, after committing its offsets"),
        (group, one, "generation 2, and its members"),
        (one, group, "SyncGroup: the assignment"),
        (group, two, "your partitions: 2, 3"),
    ]
    for number, (start, end, label) in enumerate(steps):
        height = 96 + 42 * number
        picture.arrow([(start, height), (end, height)])
        # Beside the line of the member in the middle, not across it.
        middle = (min(start, end) + 8) if abs(start - end) > 300 else (min(start, end) + 40)
        picture.note(middle, height - 7, label)
    picture.note(716, 96, "Preparing: waits for", "members until the", "rebalance timeout")
    picture.note(716, 264, "Completing: waits for", "the assignment")
    picture.note(716, 348, "Stable: heartbeats,", "commits")
    return picture


def pipeline() -> Diagram:
    picture = Diagram(
        "A pipeline as a graph",
        "A topic is decoded; what cannot be decoded goes to a topic of dead letters; steps in SQL"
        " or Python lead to sinks; the checkpoint has the position and the state.",
        880,
        300,
    )
    picture.box(24, 60, 130, 60, "orders", "topic", kind="store")
    picture.box(204, 60, 140, 60, "source", "decode, watermark")
    picture.box(394, 60, 150, 60, "unique_orders", "deduplicate")
    picture.box(594, 60, 120, 60, "per_minute", "sql")
    picture.box(764, 24, 100, 56, "totals", "topic", kind="store")
    picture.box(764, 104, 100, 56, "lake", "files", kind="store")
    picture.box(204, 190, 140, 60, "orders-dead", "topic: dead letters", kind="store")
    picture.box(454, 190, 200, 60, "checkpoint", "offsets, state, batch numbers", kind="outside")
    picture.arrow([(154, 90), (204, 90)])
    picture.arrow([(344, 90), (394, 90)])
    picture.arrow([(544, 90), (594, 90)])
    picture.arrow([(714, 80), (739, 80), (739, 52), (764, 52)])
    picture.arrow([(714, 100), (739, 100), (739, 132), (764, 132)])
    picture.arrow([(274, 120), (274, 190)], "what cannot be decoded")
    picture.arrow([(554, 190), (554, 155), (469, 155), (469, 120)], back=True)
    picture.note(
        24, 280, "Each sink takes a batch once, even if it is written again after a failure."
    )
    return picture


DIAGRAMS = {
    "write-path.svg": write_path,
    "read-path.svg": read_path,
    "replication.svg": replication,
    "group-rebalance.svg": group_rebalance,
    "pipeline.svg": pipeline,
}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, make in DIAGRAMS.items():
        (IMAGES / name).write_text(make().svg())


if __name__ == "__main__":
    main()
