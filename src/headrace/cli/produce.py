"""`headrace produce`: records from lines, JSON lines or files into a topic."""

import time

import click

from headrace.cli.explain import explain
from headrace.cli.feed import Job, Outcome, feed
from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.options import client_options, examples, key_value
from headrace.cli.output import bytes_text, counted, print_json
from headrace.cli.session import open_cluster
from headrace.client.writer import ACKS_ALL, Writer, WriterOptions
from headrace.protocol.compression import Compression
from headrace.types import TopicPartition

_DEFAULTS = WriterOptions()
_ACKS = {"0": 0, "1": 1, "all": ACKS_ALL, "-1": ACKS_ALL}


@click.command(
    short_help="Write records to a topic.",
    epilog=examples(
        "echo hello | headrace produce greetings",
        "headrace produce orders --key-separator : orders.txt",
        "headrace produce events --format json --compression zstd events.jsonl",
        "headrace produce images --whole-file --header type=png *.png",
        "headrace consume a --json | headrace produce b --format json --repartition",
    ),
)
@click.argument("topic")
@click.argument("paths", metavar="[FILE]...", nargs=-1)
@click.option(
    "--format",
    "input_format",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="What a line of input is: a value, or a JSON object with value, key, headers, partition"
    " and timestamp.",
)
@click.option("--whole-file", is_flag=True, help="Make each file one record.")
@click.option("--key", metavar="TEXT", help="The key of records that bring none.")
@click.option(
    "--key-separator", metavar="TEXT", help="What stands between key and value in each line."
)
@click.option(
    "--header",
    "headers",
    type=key_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; may be repeated.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="The partition of records that bring none; without it the key decides.",
)
@click.option(
    "--repartition",
    is_flag=True,
    help="Ignore the partitions that JSON input names, and let the key decide.",
)
@click.option("--tombstones", is_flag=True, help="Make empty values null, which deletes a key.")
@click.option(
    "--acks",
    type=click.Choice(list(_ACKS)),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it counts as written.",
)
@click.option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Compression]),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="BYTES",
    default=_DEFAULTS.batch_bytes,
    show_default=True,
    help="Bytes of records that go to a partition at once.",
)
@click.option(
    "--linger-ms",
    type=click.IntRange(min=0),
    metavar="MS",
    default=_DEFAULTS.linger_ms,
    show_default=True,
    help="How long a batch may wait for more records.",
)
@click.option(
    "--idempotence/--no-idempotence",
    "idempotent",
    default=True,
    show_default=True,
    help="Whether a retry can never write a record twice; needs --acks all.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Write at most N records a second.",
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records of the input."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@client_options
def produce(
    topic: str,
    paths: tuple[str, ...],
    input_format: str,
    whole_file: bool,
    key: str | None,
    key_separator: str | None,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    repartition: bool,
    tombstones: bool,
    acks: str,
    compression: str,
    batch_size: int,
    linger_ms: int,
    idempotent: bool,
    rate: float | None,
    count: int | None,
    quiet: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Write records to TOPIC from FILEs, or from standard input without any; - is standard input.

    Each line is one record, without its newline. The exit status is 1 if a record could not be
    written, and stderr names it.
    """
    job = Job(
        topic,
        paths or ("-",),
        input_format,
        whole_file,
        None if key is None else key.encode(),
        _separator(key_separator, input_format, whole_file),
        tuple((name, value.encode()) for name, value in headers),
        partition,
        repartition,
        tombstones,
        rate,
        count,
    )
    options = WriterOptions(
        acks=_ACKS[acks],
        compression=Compression[compression.upper()],
        # Only acks from all replicas make a retry safe, as in Kafka.
        idempotent=idempotent and _ACKS[acks] == ACKS_ALL,
        batch_bytes=batch_size,
        linger_ms=linger_ms,
    )
    outcome = Outcome()
    begun = time.monotonic()
    with open_cluster(bootstrap, timeout_s) as cluster:
        # Before any input is read: a wrong topic or address is not the first line's fault.
        cluster.topics([topic], create=True)
        if partition is not None:
            cluster.partition(TopicPartition(topic, partition))
        writer = Writer(cluster, options, outcome.note)
        try:
            feed(job, writer, linger_ms / 1000, outcome, quiet=quiet)
        finally:
            _report(outcome)
    _print_summary(topic, writer, outcome, time.monotonic() - begun, as_json, quiet)
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.failed else 0


def _print_summary(
    topic: str, writer: Writer, outcome: Outcome, seconds: float, as_json: bool, quiet: bool
) -> None:
    records, written_bytes = writer.records_written, writer.bytes_written
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": records,
                "bytes": written_bytes,
                "failed": outcome.failed,
                "seconds": round(seconds, 6),
            }
        )
    elif not quiet:
        total, speed = bytes_text(written_bytes), bytes_text(written_bytes / max(seconds, 1e-6))
        summary = f"{counted(records, 'record')}, {total} in {seconds:.2f} s, {speed}/s"
        click.echo(summary, err=True)


def _report(outcome: Outcome) -> None:
    """Name the records that were not written."""
    named = 0
    for failure in outcome.failures:
        first, more = failure.tags[0], len(failure.tags) - 1
        also = f" and {counted(more, 'record')} after it" if more else ""
        click.echo(f"headrace: {first}{also} not written: {explain(failure.error)}", err=True)
        named += len(failure.tags)
    if outcome.failed > named:
        rest = counted(outcome.failed - named, "further record")
        click.echo(f"headrace: {rest} not written", err=True)


def _separator(text: str | None, input_format: str, whole_file: bool) -> bytes | None:
    if text is None:
        return None
    if input_format == "json" or whole_file:
        raise click.UsageError("--key-separator is for lines, not for JSON or whole files.")
    if not text:
        raise click.UsageError("--key-separator is empty.")
    return text.encode()
