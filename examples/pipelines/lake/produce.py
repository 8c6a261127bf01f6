"""Changes of a table of customers, as change data capture sends them: {op, before, after, ts}.

Made from a seed, the same every time. `op` is c, u or d: created, updated, deleted.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

import headrace

TOPIC = "customers-changes"
PARTITIONS = 3
CITIES = ("Bergen", "Lisbon", "Kraków", "Ghent", "Turku")


@dataclass(frozen=True, slots=True)
class Customer:
    """A row of the table."""

    id: int
    name: str
    city: str
    credit: float


@dataclass(frozen=True, slots=True)
class Change:
    """What a row was before and is now; None is no row."""

    before: Customer | None
    after: Customer | None
    at: datetime

    @property
    def id(self) -> int:
        row = self.after or self.before
        assert row is not None
        return row.id

    @property
    def op(self) -> str:
        if self.before is None:
            return "c"
        return "d" if self.after is None else "u"

    def as_json(self) -> str:
        event = {
            "op": self.op,
            "before": self.before and asdict(self.before),
            "after": self.after and asdict(self.after),
            "ts": round(self.at.timestamp() * 1000),
        }
        return json.dumps(event, ensure_ascii=False)


def make_changes(
    count: int, *, start: datetime, span: timedelta, seed: int = 2026
) -> Iterator[Change]:
    """So many changes, spread evenly over a span of time."""
    chance = random.Random(seed)
    table: dict[int, Customer] = {}
    for number in range(count):
        at = start + span * (number / count)
        if not table or chance.random() < 0.4:
            made = Customer(number, f"customer {number}", chance.choice(CITIES), 0.0)
            before, after = None, made
        else:
            before = table[chance.choice(list(table)[-50:])]
            after = replace(
                before, city=chance.choice(CITIES), credit=chance.randrange(10**6) / 100
            )
            if chance.random() < 0.1:
                after = None
        yield Change(before, after, at)
        if after:
            table[after.id] = after
        elif before:
            del table[before.id]


def send_changes(bootstrap_servers: str, changes: Iterator[Change]) -> int:
    """Send changes, a customer's all to one partition so that they stay in order."""
    with headrace.Admin(bootstrap_servers=bootstrap_servers) as admin:
        if TOPIC not in admin.list_topics():
            admin.create_topic(TOPIC, partitions=PARTITIONS)
    with headrace.Producer(bootstrap_servers=bootstrap_servers) as producer:
        sent = [producer.send(TOPIC, change.as_json(), key=str(change.id)) for change in changes]
        return len([future.result() for future in sent])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--changes", type=int, default=10_000, help="how many to send")
    parser.add_argument("--days", type=float, default=3, help="the time they are spread over")
    arguments = parser.parse_args()
    span = timedelta(days=arguments.days)
    changes = make_changes(arguments.changes, start=datetime.now(UTC) - span, span=span)
    print(f"{send_changes(arguments.bootstrap_server, changes):,} changes sent to {TOPIC}")


if __name__ == "__main__":
    main()
