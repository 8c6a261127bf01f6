"""`headrace log`: the files of a broker, printed, checked and repaired.

Rule: the only part of the command line that uses `headrace.storage`. It reads; repairs, and changes
of logs that were set aside, are separate commands that write only when told to.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from headrace.cli.log.dump import Document, dump_file, expand, keyring_of
from headrace.cli.log.repair import (
    plan_document,
    plan_lines,
    repair_metadata,
    repaired_lines,
    run_repair,
)
from headrace.cli.log.rewrap import rewrap
from headrace.cli.log.scrub import ScrubResult, scrub_directory
from headrace.cli.log.strays import strays
from headrace.cli.log.verify import Findings, check_files
from headrace.cli.options import examples, json_option
from headrace.cli.output import bytes_text, counted, print_json, timestamp_text
from headrace.cli.terminal_text import printable
from headrace.security.keyring import Keyring

PROBLEMS_SHOWN_MAX = 100


@click.group(short_help="Look into the files of a broker.")
def log() -> None:
    """Look into the files of a broker, running or not, and repair those of a stopped one."""


log.add_command(repair_metadata)
log.add_command(rewrap)
log.add_command(strays)


@log.command(
    epilog=examples(
        "headrace log dump headrace-data/orders-0",
        "headrace log dump --records headrace-data/orders-0/00000000000000000000.log",
        "headrace log dump --verify headrace-data",
    )
)
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--records", "with_records", is_flag=True, help="Print the records of each batch.")
@click.option(
    "--verify",
    is_flag=True,
    help="Print nothing but problems: check CRCs, records, the order of offsets, and indexes"
    " against their segments.",
)
@click.option(
    "--keys",
    metavar="SOURCE",
    default="",
    help="The keys of encrypted records: file:PATH, env:NAME or command:PROGRAM, as in the"
    " broker's setting encryption.key.source.",
)
@json_option
def dump(
    paths: tuple[Path, ...], with_records: bool, verify: bool, keys: str, as_json: bool
) -> int:
    """Print or check segments, indexes, producer snapshots and checkpoints.

    PATH is a file, the directory of a partition, or a data directory. The exit status is 1 if a
    file has a problem.
    """
    if verify and with_records:
        raise click.UsageError("--verify prints no records; leave out --records.")
    files = list(dict.fromkeys(file for path in paths for file in expand(path)))
    keyring = keyring_of(keys)
    if verify:
        return _verify(files, keyring, as_json)
    problems = 0
    for path in files:
        documents = dump_file(path, with_records=with_records, keyring=keyring)
        if as_json:
            problems += _print_json(path, documents)
        else:
            problems += _print_text(path, documents)
    return 1 if problems else 0


@log.command(
    epilog=examples("headrace log scrub headrace-data", "headrace log scrub --json /disk1 /disk2")
)
@click.argument(
    "directories",
    metavar="DIRECTORY...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@json_option
def scrub(directories: tuple[Path, ...], as_json: bool) -> int:
    """Read every segment in data directories now, and show the damaged records.

    A running broker does so by itself, see `log.scrub.interval.ms`: its progress and its findings
    are shown too. The exit status is 1 if there is damage.
    """
    scrubs = [scrub_directory(str(directory)) for directory in directories]
    if as_json:
        print_json({"directories": [directory.document() for directory in scrubs]})
    else:
        for directory in scrubs:
            _print_scrub(directory)
    return 1 if any(directory.damage for directory in scrubs) else 0


def _print_scrub(scrub: ScrubResult) -> None:
    for text in scrub.damage:
        click.echo(f"headrace: {text}", err=True)
    verdict = counted(len(scrub.damage), "damaged segment") if scrub.damage else "all right"
    read = f"{counted(scrub.segment_count, 'segment')}, {bytes_text(scrub.byte_count)}"
    click.echo(f"{scrub.directory}: {read}: {verdict}")
    click.echo(f"  its broker: {scrub.broker_text}")


@log.command(
    epilog=examples(
        "headrace log repair headrace-data/orders-0",
        "headrace log repair --skip headrace-data/orders-0",
    )
)
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--cut", is_flag=True, help="End the log before the first damage.")
@click.option("--skip", is_flag=True, help="Take out what is damaged; the rest keeps its offsets.")
@json_option
def repair(path: Path, cut: bool, skip: bool, as_json: bool) -> int:
    """Show the damage of a partition's log, and repair it with --cut or --skip.

    PATH is the directory of a partition. Without --cut or --skip nothing is changed, and the exit
    status is 1 if there is damage. A repair needs a stopped broker; the bytes it takes out stay in
    files beside the log that end with .removed.
    """
    if cut and skip:
        raise click.UsageError("--cut and --skip exclude each other; give one of them.")
    choice = "cut" if cut else "skip" if skip else None
    plan, removed = run_repair(str(path), choice)
    if as_json:
        print_json(plan_document(plan, removed))
    else:
        lines = plan_lines(plan, str(path))
        if choice is not None and removed is not None:
            lines = repaired_lines(plan, str(path), choice, removed)
        for line in lines:
            click.echo(printable(line))
    return 1 if plan.damaged and removed is None else 0


def _print_json(path: Path, documents: Iterable[Document]) -> int:
    """Print one line for each document; returns the number of problems."""
    problems = 0
    for document in documents:
        problems += document["kind"] == "problem"
        click.echo(json.dumps({"file": str(path), **document}, ensure_ascii=False))
    return problems


def _print_text(path: Path, documents: Iterable[Document]) -> int:
    """Print a heading and one line for each document; returns the number of problems."""
    click.echo(str(path))
    problems = 0
    for document in documents:
        if document["kind"] == "problem":
            problems += 1
            where = f" at position {document['position']}" if "position" in document else ""
            sys.stdout.flush()
            click.echo(f"headrace: {path}{where}: {document['problem']}", err=True)
        else:
            click.echo("  " + printable(_LINES[document["kind"]](document)))
    return problems


def _batch_line(batch: Document) -> str:
    facts = [
        f"batch at {batch['position']:<8}",
        f"offsets {batch['base_offset']}-{batch['last_offset']}",
        counted(batch["records"], "record"),
        f"{batch['size']} bytes",
        batch["compression"],
        f"{batch['timestamp_type']} {timestamp_text(batch['max_timestamp'])}",
        f"epoch {batch['leader_epoch']}",
    ]
    if batch["producer_id"] >= 0:
        facts.append(
            f"producer {batch['producer_id']}.{batch['producer_epoch']}"
            f" sequence {batch['base_sequence']}"
        )
    facts += [word for word in ("encrypted", "transactional", "control") if batch[word]]
    facts.append(f"crc {batch['crc']:08x}")
    return "  ".join(facts)


def _record_line(record: Document) -> str:
    facts = [f"  {record['offset']}", timestamp_text(record["timestamp"])]
    for name in ("metadata", "marker"):
        if name in record:
            return "  ".join([*facts, record[name]])
    facts += [f"key={_cell(record, 'key')}", f"value={_cell(record, 'value')}"]
    if record["headers"]:
        named = [f"{header['name']}={_cell(header, 'value')}" for header in record["headers"]]
        facts.append(f"headers={', '.join(named)}")
    return "  ".join(facts)


def _cell(document: Document, name: str) -> str:
    if name in document:
        return "null" if document[name] is None else str(document[name])
    return f"base64:{document[f'{name}_base64']}"


def _named(*names: str) -> Callable[[Document], str]:
    """A line of `name value` pairs."""
    return lambda document: "  ".join(
        f"{name.replace('_', ' ')} {document[name]}" for name in names
    )


def _producer_line(producer: Document) -> str:
    names = ["producer_id", "producer_epoch", "last_sequence", "last_offset"]
    if producer["transaction_first_offset"] >= 0:
        names.append("transaction_first_offset")
    return _named(*names)(producer)


_LINES: dict[str, Callable[[Document], str]] = {
    "batch": _batch_line,
    "record": _record_line,
    "encrypted": lambda encrypted: f"  {encrypted['reason']}",
    "index_entry": _named("offset", "position"),
    "time_entry": lambda entry: f"{timestamp_text(entry['timestamp'])}  offset {entry['offset']}",
    "aborted": _named("producer_id", "first_offset", "last_offset", "last_stable_offset"),
    "producer": _producer_line,
    "leader_epoch": _named("epoch", "start_offset"),
    "offset": _named("topic", "partition", "offset"),
    "partition": _named("topic_id"),
    "quorum": _named("epoch", "voted_for", "leader_id", "may_vote", "recovering"),
    "meta": _named("cluster_id", "node_id", "directory_id"),
}


def _verify(files: Sequence[Path], keyring: Keyring, as_json: bool) -> int:
    findings = check_files(files, keyring)
    if as_json:
        print_json(
            {
                "files": findings.files,
                "batches": findings.batches,
                "records": findings.records,
                "encrypted_batches_not_opened": findings.encrypted,
                "bytes": findings.size_bytes,
                "problem_count": findings.problem_count,
                "problems": [
                    {"file": problem.path, "position": problem.position, "problem": problem.text}
                    for problem in findings.problems
                ],
            }
        )
    else:
        _print_findings(findings)
    return 1 if findings.problem_count else 0


def _print_findings(findings: Findings) -> None:
    for problem in findings.problems[:PROBLEMS_SHOWN_MAX]:
        click.echo(f"headrace: {problem}", err=True)
    hidden = findings.problem_count - PROBLEMS_SHOWN_MAX
    if hidden > 0:
        click.echo(f"headrace: and {counted(hidden, 'further problem')}", err=True)
    checked = ", ".join(
        [
            counted(findings.files, "file"),
            f"{findings.batches:,} batch{'' if findings.batches == 1 else 'es'}",
            counted(findings.records, "record"),
            bytes_text(findings.size_bytes),
        ]
    )
    verdict = counted(findings.problem_count, "problem") if findings.problem_count else "all right"
    if findings.encrypted:
        verdict += (
            f"; of {findings.encrypted:,} encrypted ones only the checksum was checked, since"
            " their key is not given (--keys)"
        )
    click.echo(f"{checked}: {verdict}")
