"""Orders to try the pipeline with: made from a seed, the same every time, and sent to a topic.

A few tills are old and write an order's amount as text, which the pipeline refuses: their orders
are what the dead-letter topic is for.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import headrace

TOPIC = "orders"
PARTITIONS = 4
REGIONS = ("north", "south", "east", "west")
# An order reaches the topic up to so long after it was made.
LATE_S_MAX = 20.0
OLD_TILL_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class Order:
    """What a customer bought, where and when."""

    order_id: int
    customer: str
    region: str
    cents: int
    at: datetime
    from_old_till: bool = False

    def as_json(self) -> str:
        """The record's value; an old till's amount is in quotes."""
        cents = f'"{self.cents}"' if self.from_old_till else self.cents
        at = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return (
            f'{{"order_id": {self.order_id}, "customer": "{self.customer}",'
            f' "region": "{self.region}", "cents": {cents}, "at": "{at}"}}'
        )


def make_orders(
    count: int, *, start: datetime, span: timedelta, seed: int = 2026
) -> Iterator[Order]:
    """So many orders, spread evenly over a span of time."""
    chance = random.Random(seed)
    for number in range(count):
        late = timedelta(seconds=LATE_S_MAX * (1 - chance.random()))
        yield Order(
            order_id=number,
            customer=f"customer-{chance.randrange(5_000)}",
            region=chance.choice(REGIONS),
            cents=chance.randrange(500, 20_000),
            at=start + span * (number / count) - late,
            from_old_till=number % OLD_TILL_EVERY == OLD_TILL_EVERY // 2,
        )


def create_topic(bootstrap_servers: str, topic: str = TOPIC) -> None:
    """Make the topic if it is not there yet."""
    with headrace.Admin(bootstrap_servers=bootstrap_servers) as admin:
        if topic not in admin.list_topics():
            admin.create_topic(topic, partitions=PARTITIONS)


def send_orders(
    bootstrap_servers: str,
    orders: Iterator[Order],
    *,
    topic: str = TOPIC,
    on_sent: Callable[[int], object] = lambda count: None,
) -> int:
    """Send orders, a customer's all to one partition, and wait until each is acknowledged."""
    failures: list[BaseException] = []
    count = 0
    with headrace.Producer(bootstrap_servers=bootstrap_servers, linger_ms=20) as producer:
        for count, order in enumerate(orders, 1):
            sent = producer.send(topic, order.as_json(), key=order.customer)
            sent.add_errback(failures.append)
            if count % 1_000 == 0:
                on_sent(count)
        producer.flush()
    if failures:
        raise failures[0]
    on_sent(count)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--orders", type=int, default=200_000, help="how many to send")
    parser.add_argument("--minutes", type=float, default=10, help="the time they are spread over")
    arguments = parser.parse_args()
    span = timedelta(minutes=arguments.minutes)
    orders = make_orders(arguments.orders, start=datetime.now(UTC) - span, span=span)
    create_topic(arguments.bootstrap_server, arguments.topic)
    columns = (TextColumn("orders"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("orders", total=arguments.orders)
        send_orders(
            arguments.bootstrap_server,
            orders,
            topic=arguments.topic,
            on_sent=lambda count: progress.update(task, completed=count),
        )


if __name__ == "__main__":
    main()
