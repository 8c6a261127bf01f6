"""`headrace produce`: records from lines, JSON lines or files into a topic."""

import time
from typing import Literal

import click

from headrace.cli.explain import explain
from headrace.cli.feed import Failure, Job, Outcome, feed
from headrace.cli.input import RECORD_BYTES_MAX
from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.options import client_options, examples, key_value
from headrace.cli.output import bytes_text, counted, print_json
from headrace.cli.partitions import check_numbers
from headrace.cli.session import open_producer, timeout_ms_of
from headrace.client.failures import TimedOut
from headrace.client.options import ProducerConfig
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.compression import Compression

BATCH_BYTES = 256 * 1024
LINGER_MS = 5
# Room for the largest record that is read. It is the broker who says what is too large.
BUFFER_BYTES = RECORD_BYTES_MAX + 32 * 1_048_576

_INT32_MAX = 2**31 - 1
_LINGER_MS_MAX = 86_400_000
_ACKS: dict[str, Literal["all", 0, 1]] = {"0": 0, "1": 1, "all": "all", "-1": "all"}


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
    type=click.IntRange(min=1, max=_INT32_MAX),
    metavar="BYTES",
    default=BATCH_BYTES,
    show_default=True,
    help="Bytes of records that go to a partition at once.",
)
@click.option(
    "--linger-ms",
    type=click.IntRange(min=0, max=_LINGER_MS_MAX),
    metavar="MS",
    default=LINGER_MS,
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
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"],
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
    config: ProducerConfig = {
        "acks": _ACKS[acks],
        "compression_type": compression,
        # Only acks from all replicas make a retry safe, as in Kafka.
        "enable_idempotence": idempotent and _ACKS[acks] == "all",
        "batch_size": batch_size,
        "buffer_memory": max(BUFFER_BYTES, batch_size),
        "max_request_size": _INT32_MAX,
    }
    outcome = Outcome()
    begun = time.monotonic()
    try:
        with open_producer(bootstrap, timeout_s, linger_ms, config) as producer:
            # Before any input is read: a wrong topic or address is not the first line's fault.
            existing = sorted(producer.partitions_for(topic))
            check_numbers(topic, [] if partition is None else [partition], existing)
            feed(job, producer, outcome, quiet=quiet)
    finally:
        _report(outcome, timeout_s, linger_ms)
    _print_summary(topic, outcome, time.monotonic() - begun, as_json, quiet)
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.failed else 0


def _print_summary(
    topic: str, outcome: Outcome, seconds: float, as_json: bool, quiet: bool
) -> None:
    records, written_bytes = outcome.records, outcome.written_bytes
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


def _report(outcome: Outcome, timeout_s: float, linger_ms: int) -> None:
    """Name the records that were not written."""
    named = 0
    for failure in outcome.failures:
        more = failure.count - 1
        also = f" and {counted(more, 'record')} after it" if more else ""
        reason = _reason(failure, timeout_s, linger_ms)
        click.echo(f"headrace: {failure.first}{also} not written: {reason}", err=True)
        named += failure.count
    if outcome.failed > named:
        rest = counted(outcome.failed - named, "further record")
        click.echo(f"headrace: {rest} not written", err=True)


def _reason(failure: Failure, timeout_s: float, linger_ms: int) -> str:
    """Why records were not written, in the words of the command instead of the client's."""
    error = failure.error
    if isinstance(error, KafkaError) and error.code is ErrorCode.MESSAGE_TOO_LARGE:
        return explain(KafkaError(error.code, error.detail.partition(";")[0]))
    text = explain(error) if isinstance(error, HeadraceError) else str(error)
    if isinstance(error, TimedOut):
        limit_ms = timeout_ms_of(timeout_s) + linger_ms
        text = text.replace(f"delivery_timeout_ms ({limit_ms} ms)", f"{timeout_s:g} s")
    return text


def _separator(text: str | None, input_format: str, whole_file: bool) -> bytes | None:
    if text is None:
        return None
    if input_format == "json" or whole_file:
        raise click.UsageError("--key-separator is for lines, not for JSON or whole files.")
    if not text:
        raise click.UsageError("--key-separator is empty.")
    return text.encode()
