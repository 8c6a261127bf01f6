"""Clicks of visitors, made from a seed: each comes a few times, clicks for a while, leaves."""

import argparse
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import headrace

TOPIC = "clicks"
PARTITIONS = 2
PAGES = ("/", "/search", "/product", "/product", "/help", "/basket", "/pay")
PEOPLE = "Mozilla/5.0 (X11; Linux x86_64)"
ROBOT = "Examplebot/2.1"


@dataclass(frozen=True, slots=True)
class Click:
    """A page that somebody asked for."""

    visitor: str
    page: str
    agent: str
    at: datetime

    def as_json(self) -> str:
        return json.dumps(
            {
                "visitor": self.visitor,
                "url": f"https://shop.example{self.page}?ref=mail",
                "agent": self.agent,
                "at": self.at.isoformat(timespec="milliseconds"),
            }
        )


def make_clicks(
    visitors: int, *, start: datetime, span: timedelta, seed: int = 2026
) -> list[Click]:
    """The clicks of so many visitors and one robot, in the order in which they were made."""
    chance = random.Random(seed)
    clicks = []
    for number in range(visitors):
        agent = ROBOT if number == 0 else PEOPLE
        for _ in range(chance.randint(1, 3)):
            at = start + span * chance.random()
            for _ in range(chance.randint(1, 12)):
                clicks.append(Click(f"visitor-{number}", chance.choice(PAGES), agent, at))
                at += timedelta(seconds=chance.randrange(1, 300))
    return sorted(clicks, key=lambda click: click.at)


def send_clicks(bootstrap_servers: str, clicks: Iterable[Click]) -> int:
    """Send clicks, a visitor's all to one partition."""
    with headrace.Admin(bootstrap_servers=bootstrap_servers) as admin:
        if TOPIC not in admin.list_topics():
            admin.create_topic(TOPIC, partitions=PARTITIONS)
    with headrace.Producer(bootstrap_servers=bootstrap_servers) as producer:
        sent = [producer.send(TOPIC, click.as_json(), key=click.visitor) for click in clicks]
        return len([future.result() for future in sent])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--visitors", type=int, default=2_000, help="how many come")
    parser.add_argument("--hours", type=float, default=6, help="the time they come in")
    arguments = parser.parse_args()
    span = timedelta(hours=arguments.hours)
    clicks = make_clicks(arguments.visitors, start=datetime.now(UTC) - span, span=span)
    print(f"{send_clicks(arguments.bootstrap_server, clicks):,} clicks sent to {TOPIC}")


if __name__ == "__main__":
    main()
