"""`headrace transactions`: list and describe transactions and producers, abort hanging ones."""

from typing import Any

import click

from headrace.cli.clients import now_ms, open_admin, outcomes_of
from headrace.cli.options import client_options, confirm, examples
from headrace.cli.output import print_json, print_table
from headrace.cli.partitions import chosen_partitions, parse_partitions, partitions_text
from headrace.cli.terminal_text import printable
from headrace.client.admin.admin import Admin
from headrace.client.admin.transactions import (
    STATES,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    hanging,
    open_producer,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

# A broker's default for transaction.max.timeout.ms: no coordinator keeps one open longer.
_MAX_TIMEOUT_MS = 900_000


@click.group(short_help="Watch and abort transactions.")
def transactions() -> None:
    """Show transactions, and abort those that their producers do not end."""


@transactions.command(
    "list",
    epilog=examples(
        "headrace transactions list",
        "headrace transactions list --state Ongoing --duration-ms 60000",
        "headrace transactions list --pattern 'copier-.*'",
        "headrace transactions list --producer-id 4001 --json",
    ),
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    metavar="STATE",
    help=f"Only those in this state: {', '.join(STATES)}; may be repeated.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="ID",
    help="Only those of this producer; may be repeated.",
)
@click.option(
    "--duration-ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Only transactions that are open for longer than this.",
)
@click.option(
    "--pattern",
    metavar="REGEX",
    help="Only transactional ids that match this regular expression as a whole.",
)
@client_options
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_ms: int | None,
    pattern: str | None,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """List transactional ids, and the states of their transactions."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = list(admin.list_transactions(states, producer_ids, duration_ms, pattern).values())
    if as_json:
        print_json({"transactions": [_listed(transaction) for transaction in found]})
    elif not found:
        click.echo("no such transactions", err=True)
    else:
        print_table(
            ["TRANSACTIONAL ID", "PRODUCER ID", "STATE", "COORDINATOR"],
            [
                (
                    transaction.transactional_id,
                    transaction.producer_id,
                    transaction.state,
                    transaction.coordinator,
                )
                for transaction in found
            ],
        )


def _listed(listing: TransactionListing) -> dict[str, Any]:
    return {
        "transactional_id": listing.transactional_id,
        "producer_id": listing.producer_id,
        "state": listing.state,
        "coordinator": listing.coordinator,
    }


@transactions.command(
    epilog=examples(
        "headrace transactions describe copier-1",
        "headrace transactions describe copier-1 copier-2 --json",
    )
)
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@client_options
def describe(names: tuple[str, ...], bootstrap: str, timeout_s: float, as_json: bool) -> int:
    """Show the producers of transactional IDs, and the partitions of their transactions."""
    with open_admin(bootstrap, timeout_s) as admin:
        outcomes = outcomes_of(lambda: admin.describe_transactions(names))
    found = [
        outcome for outcome in outcomes.values() if isinstance(outcome, TransactionDescription)
    ]
    now = now_ms()
    if as_json:
        print_json({"transactions": [_document(transaction) for transaction in found]})
    elif found:
        print_table(
            [
                "TRANSACTIONAL ID",
                "STATE",
                "PRODUCER ID",
                "EPOCH",
                "OPEN FOR",
                "TIMEOUT",
                "COORDINATOR",
                "PARTITIONS",
            ],
            [
                (
                    transaction.transactional_id,
                    transaction.state,
                    transaction.producer_id,
                    transaction.producer_epoch,
                    _duration(now, transaction.start_ms),
                    f"{transaction.timeout_ms / 1000:g} s",
                    transaction.coordinator,
                    partitions_text(transaction.partitions),
                )
                for transaction in found
            ],
        )
    return _report_errors(outcomes)


def _duration(now: int, start_ms: int | None) -> str | None:
    return None if start_ms is None else f"{max(now - start_ms, 0) / 1000:.1f} s"


def _document(description: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": description.transactional_id,
        "state": description.state,
        "coordinator": description.coordinator,
        "producer_id": description.producer_id,
        "producer_epoch": description.producer_epoch,
        "timeout_ms": description.timeout_ms,
        "start_ms": description.start_ms,
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition} for tp in description.partitions
        ],
    }


def _report_errors(outcomes: dict[str, Any]) -> int:
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, KafkaError)]
    for error in errors:
        click.echo(printable(f"headrace: {error.detail or error.code.name}"), err=True)
    return 1 if errors else 0


@transactions.command(
    epilog=examples(
        "headrace transactions abort --transactional-id copier-1",
        "headrace transactions abort --topic orders --partition 0 --start-offset 4711",
        "headrace transactions abort --topic orders --partition 0 --producer-id 4001 --yes",
    )
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Abort the transaction of this id, and fence its producer.",
)
@click.option("--topic", metavar="TOPIC", help="End a transaction in a partition of this topic.")
@click.option(
    "--partition", type=click.IntRange(min=0), metavar="NUMBER", help="The partition's number."
)
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="The transaction whose first record is there.",
)
@click.option(
    "--producer-id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="The transaction of this producer.",
)
@click.option("--yes", is_flag=True, help="Do not ask before aborting.")
@client_options
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    producer_id: int | None,
    yes: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Abort a transaction.

    By its transactional id: as if a new producer of that id had started, which fences the old one.
    By a partition: only there, for a transaction that no coordinator knows, so that it hangs and
    read_committed consumers wait for its end. `find-hanging` finds those.
    """
    if (transactional_id is None) == (topic is None):
        raise click.UsageError("Give either --transactional-id or --topic and --partition.")
    if transactional_id is not None:
        if (partition, start_offset, producer_id) != (None, None, None):
            raise click.UsageError("--transactional-id goes with no other option.")
        with open_admin(bootstrap, timeout_s) as admin:
            _fence(admin, transactional_id, yes, as_json)
        return
    assert topic is not None
    if partition is None or (start_offset is None) == (producer_id is None):
        raise click.UsageError("--topic needs --partition, and --start-offset or --producer-id.")
    tp = TopicPartition(topic, partition)
    with open_admin(bootstrap, timeout_s) as admin:
        meant = open_producer(
            tp,
            admin.describe_producers([tp])[tp],
            producer_id=producer_id,
            start_offset=start_offset,
        )
        _check_hangs(admin, tp, meant)
        if not yes:
            confirm(f"Abort the transaction of producer {meant.producer_id} in {tp}?", "Aborting")
        found = admin.abort_transaction(tp, producer_id=meant.producer_id)
    if as_json:
        print_json({"topic": topic, "partition": partition, **_producer(found)})
    else:
        click.echo(
            f"aborted the transaction of producer {found.producer_id} in {tp},"
            f" which began at offset {found.transaction_start_offset}"
        )


def _check_hangs(admin: Admin, tp: TopicPartition, producer: ProducerState) -> None:
    """Refuse to abort a partition of a transaction that a coordinator will end as a whole."""
    for transaction in _of_producers(admin, [producer.producer_id]):
        if tp in transaction.partitions:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"the transaction in {tp} is that of {transaction.transactional_id}, which is"
                f" {transaction.state}",
                advice=(
                    f"abort it as a whole with --transactional-id {transaction.transactional_id}"
                ),
            )


def _fence(admin: Admin, transactional_id: str, yes: bool, as_json: bool) -> None:
    # Fencing an unknown id would create it.
    admin.describe_transactions([transactional_id])
    if not yes:
        confirm(f"Fence the producer of {transactional_id}, and abort what it has open?", "Fencing")
    fenced = admin.fence_producers([transactional_id])[transactional_id]
    if as_json:
        print_json(
            {
                "transactional_id": transactional_id,
                "producer_id": fenced.producer_id,
                "producer_epoch": fenced.epoch,
            }
        )
    else:
        click.echo(
            f"{transactional_id}: its producer is fenced, and what it had open is aborted"
            f" (producer {fenced.producer_id}, epoch {fenced.epoch})"
        )


_broker_option = click.option(
    "--broker-id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Ask this broker about the replicas it has, and not the leaders of partitions.",
)


@transactions.command(
    "describe-producers",
    epilog=examples(
        "headrace transactions describe-producers orders:0",
        "headrace transactions describe-producers orders:0-3 --broker-id 2 --json",
    ),
)
@click.argument("chosen", metavar="TOPIC[:PARTITIONS]...", nargs=-1, required=True)
@_broker_option
@client_options
def describe_producers(
    chosen: tuple[str, ...],
    broker_id: int | None,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show the producers known to partitions, and the first offsets of their transactions."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_producers(_partitions(admin, chosen), broker_id)
    rows = [(tp, state) for tp, states in sorted(found.items()) for state in states]
    if as_json:
        print_json({"producers": [_producer_document(tp, producer) for tp, producer in rows]})
    elif not rows:
        click.echo("no producer is known", err=True)
    else:
        now = now_ms()
        print_table(
            [
                "TOPIC",
                "PARTITION",
                "PRODUCER ID",
                "EPOCH",
                "LAST SEQUENCE",
                "COORDINATOR EPOCH",
                "START OFFSET",
                "LAST WRITTEN",
            ],
            [
                (
                    tp.topic,
                    tp.partition,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.last_sequence,
                    producer.coordinator_epoch,
                    producer.transaction_start_offset,
                    f"{max(now - producer.last_timestamp, 0) / 1000:.1f} s ago",
                )
                for tp, producer in rows
            ],
        )


def _producer_document(tp: TopicPartition, producer: ProducerState) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        **_producer(producer),
        "last_sequence": producer.last_sequence,
        "coordinator_epoch": producer.coordinator_epoch,
    }


@transactions.command(
    "find-hanging",
    epilog=examples(
        "headrace transactions find-hanging",
        "headrace transactions find-hanging orders:0-3 --max-timeout-ms 60000",
        "headrace transactions find-hanging --broker-id 2",
    ),
)
@click.argument("chosen", metavar="[TOPIC[:PARTITIONS]]...", nargs=-1)
@click.option(
    "--max-timeout-ms",
    type=click.IntRange(min=0),
    default=_MAX_TIMEOUT_MS,
    show_default=True,
    metavar="MS",
    help="Leave out what was written to since: transactions of this length are allowed.",
)
@_broker_option
@client_options
def find_hanging(
    chosen: tuple[str, ...],
    max_timeout_ms: int,
    broker_id: int | None,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Find transactions that are open in partitions but unknown to every coordinator.

    Without a topic all topics are searched. `headrace transactions abort` ends the hanging ones.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        partitions = _partitions(admin, chosen)
        if broker_id is not None:
            partitions = _held_by(admin, broker_id, partitions)
        found = _hanging(admin, partitions, now_ms() - max_timeout_ms, broker_id)
    rows = [(tp, state) for tp, states in sorted(found.items()) for state in states]
    if as_json:
        print_json(
            {
                "hanging": [
                    {"topic": tp.topic, "partition": tp.partition, **_producer(producer)}
                    for tp, producer in rows
                ]
            }
        )
    elif not rows:
        click.echo("no transaction hangs", err=True)
    else:
        now = now_ms()
        print_table(
            ["TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET", "LAST WRITTEN"],
            [
                (
                    tp.topic,
                    tp.partition,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.transaction_start_offset,
                    f"{max(now - producer.last_timestamp, 0) / 1000:.1f} s ago",
                )
                for tp, producer in rows
            ],
        )


def _partitions(admin: Admin, chosen: tuple[str, ...]) -> list[TopicPartition]:
    if chosen:
        return chosen_partitions(admin, [parse_partitions(text) for text in chosen])
    return sorted(
        TopicPartition(name, partition.index)
        for name, topic in admin.list_topics(internal=True).items()
        for partition in topic.partitions
    )


def _held_by(
    admin: Admin, broker_id: int, partitions: list[TopicPartition]
) -> list[TopicPartition]:
    """The partitions that have a replica on a broker."""
    topics = admin.describe_topics(sorted({tp.topic for tp in partitions}))
    held = {
        TopicPartition(name, partition.index)
        for name, topic in topics.items()
        for partition in topic.partitions
        if broker_id in partition.replicas
    }
    return [tp for tp in partitions if tp in held]


def _hanging(
    admin: Admin, partitions: list[TopicPartition], before_ms: int, broker_id: int | None
) -> dict[TopicPartition, list[ProducerState]]:
    producers = admin.describe_producers(partitions, broker_id)
    suspects = hanging(producers, (), before_ms=before_ms)
    ids = {state.producer_id for states in suspects.values() for state in states}
    known = _of_producers(admin, sorted(ids))
    return hanging(producers, known, before_ms=before_ms)


def _of_producers(admin: Admin, producer_ids: list[int]) -> list[TransactionDescription]:
    """The transactions of producers, as far as coordinators know them."""
    if not producer_ids:
        return []
    listed = admin.list_transactions(producer_ids=producer_ids)
    described = outcomes_of(lambda: admin.describe_transactions(listed))
    return [
        outcome for outcome in described.values() if isinstance(outcome, TransactionDescription)
    ]


def _producer(producer: ProducerState) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "start_offset": producer.transaction_start_offset,
        "last_timestamp": producer.last_timestamp,
    }
