"""`headrace reassign`: moves partitions between brokers, by plans in Kafka's format."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import click

from headrace.cli.clients import errors_of, open_admin, outcomes_of
from headrace.cli.errors import report
from headrace.cli.options import Command, client_options, examples
from headrace.cli.output import counted, print_json, print_table
from headrace.cli.reassignment_moves import (
    MoveMonitor,
    PlanFile,
    ReplicaPlacement,
    begin,
    elect_preferred,
    largest,
    plan_document,
    read_placement,
    read_plan,
    read_topics,
    remove_throttle,
    set_log_dir_throttle,
    sizes_on,
    summary,
)
from headrace.client.admin.admin import Admin
from headrace.client.admin.cluster import FutureReplica, LogDirectory
from headrace.client.admin.reassignment_plan import Assignment, make_plan
from headrace.errors import ErrorCode, HeadraceError, KafkaError, UnknownTopic, unknown_topic
from headrace.types import TopicPartition

# The target directory of each replica of a broker, by broker.
LogDirs = Mapping[int, Mapping[TopicPartition, str]]

PAUSE_S = 0.2


def begin_log_dir_moves(admin: Admin, log_dirs: LogDirs, timeout_s: float) -> list[KafkaError]:
    """Move replicas to other directories of their brokers; returns the errors of those that cannot
    move.

    The request is repeated for a replica that is still moving to its broker: the broker then
    creates it in the right directory.
    """
    deadline = time.monotonic() + timeout_s
    errors: list[KafkaError] = []
    left = {broker: dict(targets) for broker, targets in log_dirs.items()}
    while True:
        waiting: dict[int, dict[TopicPartition, str]] = {}
        for broker, targets in left.items():
            failures = _alter(admin, broker, targets)
            over = time.monotonic() >= deadline
            for tp, error in failures.items():
                if error.code is ErrorCode.REPLICA_NOT_AVAILABLE and not over:
                    waiting.setdefault(broker, {})[tp] = targets[tp]
                else:
                    errors.append(error)
        left = waiting
        if not left:
            return errors
        time.sleep(PAUSE_S)


def _alter(
    admin: Admin, broker: int, targets: Mapping[TopicPartition, str]
) -> dict[TopicPartition, KafkaError]:
    return errors_of(lambda: admin.alter_replica_log_dirs(broker, targets))


def log_dir_moves(admin: Admin, brokers: Sequence[int]) -> dict[int, dict[TopicPartition, str]]:
    """All moves between directories that are under way on these brokers."""
    return {
        broker: {
            tp: directory.path for directory in directories for tp in directory.future_replicas
        }
        for broker, directories in _directories(admin, brokers).items()
        if any(directory.future_replicas for directory in directories)
    }


def log_dir_states(admin: Admin, log_dirs: LogDirs) -> list[dict[str, Any]]:
    """The state of each replica of a plan: done, moving, elsewhere, or gone."""
    states = []
    found = _directories(admin, sorted(log_dirs))
    for broker in sorted(log_dirs):
        directories = found.get(broker, ())
        for tp, target in sorted(log_dirs[broker].items()):
            path = next(
                (directory.path for directory in directories if tp in directory.replicas), None
            )
            futures = {
                directory.path: directory.future_replicas.get(tp) for directory in directories
            }
            states.append(
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "broker": broker,
                    "log_dir": path,
                    "target": target,
                    **_state(path, target, futures),
                }
            )
    return states


def _state(
    path: str | None, target: str, futures: Mapping[str, FutureReplica | None]
) -> dict[str, Any]:
    future = futures.get(target)
    if path is None:
        return {"state": "gone", "offset_lag": None}
    if path == target:
        return {"state": "done", "offset_lag": None}
    if future is not None:
        return {"state": "moving", "offset_lag": future.offset_lag}
    is_moving = any(future is not None for future in futures.values())
    return {"state": "moving elsewhere" if is_moving else "elsewhere", "offset_lag": None}


def log_dir_state_text(state: Mapping[str, Any]) -> str:
    """The text about a replica that is not in its planned directory yet."""
    subject = f"replica {state['topic']}-{state['partition']} of broker {state['broker']}"
    if state["state"] == "gone":
        return f"{subject} is not there, or its broker is down"
    if state["state"] == "moving":
        lag = counted(state["offset_lag"], "offset")
        return f"{subject} moves from {state['log_dir']} to {state['target']}, {lag} behind"
    if state["state"] == "moving elsewhere":
        return f"{subject} moves from {state['log_dir']}, but not to {state['target']}"
    return f"{subject} is in {state['log_dir']} and does not move to {state['target']}"


def wait_for_log_dirs(admin: Admin, log_dirs: LogDirs) -> None:
    """Wait until no replica of a plan moves to its directory any more."""
    while any(
        log_dir_state["state"] == "moving" for log_dir_state in log_dir_states(admin, log_dirs)
    ):
        time.sleep(PAUSE_S)


def cancel_log_dir_moves(
    admin: Admin, log_dirs: LogDirs
) -> tuple[list[TopicPartition], list[KafkaError]]:
    """Cancel the directory moves of a plan; returns the cancelled replicas, and the errors."""
    cancelled: list[TopicPartition] = []
    errors: list[KafkaError] = []
    back: dict[int, dict[TopicPartition, str]] = {}
    for state in log_dir_states(admin, log_dirs):
        if state["state"] == "moving":
            tp = TopicPartition(state["topic"], state["partition"])
            back.setdefault(state["broker"], {})[tp] = state["log_dir"]
    for broker, targets in back.items():
        failures = _alter(admin, broker, targets)
        errors += failures.values()
        cancelled += [tp for tp in targets if tp not in failures]
    return cancelled, errors


def _directories(admin: Admin, brokers: Sequence[int]) -> dict[int, tuple[LogDirectory, ...]]:
    if not brokers:
        return {}
    outcomes = outcomes_of(lambda: admin.describe_log_dirs(brokers))
    return {
        broker: outcome
        for broker, outcome in outcomes.items()
        if not isinstance(outcome, KafkaError)
    }


_GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class MovesUnderWay(HeadraceError):
    """Other partitions are moving already."""


class UnsuitableBrokers(HeadraceError):
    """Named or required brokers cannot take replicas."""


@click.group(short_help="Move partitions between brokers.")
def reassign() -> None:
    """Move partitions between brokers, or between directories of a broker, by a plan.

    `generate` makes a plan, `execute` begins it, `verify` shows its progress, `cancel` takes back
    unfinished moves. `headrace brokers drain` does all of this for a broker that is to be removed.
    """


def throttle_option(command: Command) -> Command:
    """The option that limits the rate of copying replicas."""
    return click.option(
        "--throttle",
        type=click.IntRange(min=1),
        metavar="BYTES",
        help="Copy at most so many bytes a second to and from each broker, or on it.",
    )(command)


def brokers_list(text: str) -> tuple[int, ...]:
    """Broker ids from `1,2,3`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) < 2**31 for part in parts):
        raise click.BadParameter(f"{text!r} is not of the form 1,2,3.")
    return tuple(dict.fromkeys(map(int, parts)))


@reassign.command(
    short_help="Make a plan that spreads replicas evenly.",
    epilog=examples(
        "headrace reassign generate | tee plan.json",
        "headrace reassign generate --brokers 1,2,3,4 --topic orders",
        "headrace reassign generate --replication-factor 3 --json",
    ),
)
@click.option(
    "--brokers",
    "broker_ids",
    type=brokers_list,
    metavar="ID,...",
    help="The brokers that are to have replicas; without it every broker.",
)
@click.option(
    "--topic",
    "names",
    multiple=True,
    metavar="NAME",
    help="Move partitions of this topic only; may be repeated.",
)
@click.option(
    "--topics-from",
    "topics_file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help='Move only the topics of a file as Kafka\'s tool takes it: {"topics": [{"topic": ...}]}.',
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1, max=2**15 - 1),
    metavar="N",
    help="Give every partition so many replicas; without it they keep their number.",
)
@click.option("--ignore-racks", is_flag=True, help="Take all brokers to be in one rack.")
@client_options
def generate(
    broker_ids: tuple[int, ...] | None,
    names: tuple[str, ...],
    topics_file: TextIO | None,
    replication_factor: int | None,
    ignore_racks: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Make a plan that spreads replicas and leaders evenly, and moves as little as possible.

    The plan goes to stdout, in the format of Kafka's kafka-reassign-partitions; nothing is changed.
    """
    wanted = [*names, *(read_topics(topics_file) if topics_file else ())]
    with open_admin(bootstrap, timeout_s) as admin:
        situation = read_placement(admin)
        allowed = _allowed(situation, broker_ids)
        sizes = largest(sizes_on(admin, situation.alive))
    everything = situation.assignment
    for name in wanted:
        if name not in situation.topics:
            raise unknown_topic(name)
    moved = {
        tp: replicas for tp, replicas in everything.items() if not wanted or tp.topic in wanted
    }
    racks = dict.fromkeys(allowed) if ignore_racks else situation.racks(allowed)
    plan = make_plan(
        racks,
        moved,
        sizes=sizes,
        replication_factor=replication_factor,
    )
    if as_json:
        print_json(
            {
                "current": plan_document(plan.before),
                "proposed": plan_document(plan.after),
                "copies": sum(map(len, plan.added().values())),
                "bytes": plan.moved_bytes(sizes),
            }
        )
        return
    print_json(plan_document(plan.after))
    if not plan.after:
        click.echo("Nothing to do: replicas and leaders are even.", err=True)
    else:
        click.echo(f"{summary(plan, sizes)}; begin with `headrace reassign execute`", err=True)


def _allowed(situation: ReplicaPlacement, broker_ids: Sequence[int] | None) -> list[int]:
    """The brokers that may have replicas."""
    if broker_ids is None:
        fenced = [broker.node_id for broker in situation.brokers.values() if broker.is_fenced]
        if fenced:
            raise UnsuitableBrokers(
                f"broker {fenced[0]} is down; wait until it is back, or say with --brokers which"
                " are to have replicas"
            )
        return sorted(situation.brokers)
    unknown = [broker_id for broker_id in broker_ids if broker_id not in situation.brokers]
    if unknown:
        known = ", ".join(map(str, sorted(situation.brokers)))
        raise UnsuitableBrokers(f"there is no broker {unknown[0]}; the cluster has {known}")
    return sorted(broker_ids)


@reassign.command(
    short_help="Begin the moves of a plan.",
    epilog=examples(
        "headrace reassign generate | headrace reassign execute - --wait",
        "headrace reassign execute plan.json --throttle 50000000 --save-current before.json",
    ),
)
@click.argument("file", type=click.File(encoding="utf-8"))
@throttle_option
@click.option("--wait", is_flag=True, help="Show progress until all is moved, then verify.")
@click.option("--additional", is_flag=True, help="Go on although other partitions are moving.")
@click.option(
    "--save-current",
    type=click.File("w", encoding="utf-8"),
    metavar="FILE",
    help="Write a plan that would take everything back.",
)
@client_options
def execute(
    file: TextIO,
    throttle: int | None,
    wait: bool,
    additional: bool,
    save_current: TextIO | None,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Begin the moves of a plan from FILE, or from stdin with `-`.

    Moves continue without this command. With --throttle, `headrace reassign verify` lifts the limit
    when they are done; with --wait this command does.

    A partition of the plan may have "log_dirs" beside its "replicas": for each replica the path of
    a directory of its broker, one of its `log.dirs`, or "any".
    """
    targets, log_dirs = read_plan(file)
    with open_admin(bootstrap, timeout_s) as admin:
        situation = read_placement(admin)
        others = [tp for tp in situation.moving if tp not in targets]
        if others and not additional:
            more = f" and {counted(len(others) - 1, 'other')} are" if others[1:] else " is"
            raise MovesUnderWay(
                f"{others[0]}{more} moving; wait for `headrace reassign verify`, or add"
                " --additional"
            )
        check_exists(situation, targets)
        if save_current is not None:
            current = {
                tp: replicas for tp, replicas in situation.assignment.items() if tp in targets
            }
            print_document(save_current, plan_document(current))
        if throttle is not None:
            set_log_dir_throttle(admin, log_dirs, throttle)
        failures = begin(admin, situation, targets, throttle)
        begun = {tp: target for tp, target in targets.items() if tp not in failures}
        status = report(failures.values())
        status |= report(begin_log_dir_moves(admin, log_dirs, timeout_s))
        if begun and wait:
            MoveMonitor(admin, "moving", begun, shown=not as_json).wait()
            wait_for_log_dirs(admin, log_dirs)
            status |= elect_preferred(admin, sorted(begun))
        states = states_of(read_placement(admin), begun)
        in_directories = log_dir_states(admin, log_dirs)
        if wait and all(state["state"] == "done" for state in (*states, *in_directories)):
            remove_throttle(admin, situation, {tp.topic for tp in begun})
    if as_json:
        print_json({"partitions": states, "log_dirs": in_directories})
    elif begun:
        text = f"began to move {counted(len(begun), 'partition')}"
        if wait:
            text = f"moved {counted(len(begun), 'partition')}"
        click.echo(text)
        if not wait:
            click.echo("see how far with `headrace reassign verify`", err=True)
    return status


def check_exists(situation: ReplicaPlacement, targets: Assignment) -> None:
    """Refuse a plan for partitions that do not exist, before any of it is carried out."""
    for tp in targets:
        topic = situation.topics.get(tp.topic)
        if topic is None or topic.partition(tp.partition) is None:
            raise UnknownTopic(f"partition {tp} of the plan does not exist")


def print_document(file: TextIO, document: Mapping[str, Any]) -> None:
    """Write a JSON document to a file that the user named."""
    import json  # noqa: PLC0415

    file.write(json.dumps(document) + "\n")
    file.flush()


def states_of(situation: ReplicaPlacement, targets: Assignment) -> list[dict[str, Any]]:
    """The state of each partition of a plan."""
    states = []
    for tp in sorted(targets):
        topic = situation.topics.get(tp.topic)
        partition = topic.partition(tp.partition) if topic else None
        move = situation.moving.get(tp)
        wanted = list(targets[tp])
        if partition is None:
            state = "gone"
        elif move is not None:
            state = "moving" if list(move.target) == wanted else "moving elsewhere"
        else:
            state = "done" if list(partition.replicas) == wanted else "elsewhere"
        states.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "state": state,
                "replicas": list(partition.replicas) if partition else [],
                "target": wanted,
                "in_sync": list(partition.isr) if partition else [],
                "adding": list(move.adding) if move else [],
                "removing": list(move.removing) if move else [],
            }
        )
    return states


@reassign.command(
    short_help="Tell how far moves are.",
    epilog=examples("headrace reassign verify plan.json", "headrace reassign verify --json"),
)
@click.argument("file", type=click.File(encoding="utf-8"), required=False)
@click.option(
    "--preserve-throttles", is_flag=True, help="Leave limits as they are when all is done."
)
@client_options
def verify(
    file: TextIO | None,
    preserve_throttles: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Show the progress of a plan's moves, or of all moves under way without FILE.

    When every move is done, limits that --throttle set are lifted. The exit status is 0 if all
    partitions are where the plan wants them.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        situation = read_placement(admin)
        copying = log_dir_moves(admin, situation.alive)
        plan = PlanFile({tp: moving.target for tp, moving in situation.moving.items()}, copying)
        if file is not None:
            plan = read_plan(file)
        targets = plan.replicas
        states = states_of(situation, targets)
        in_directories = log_dir_states(admin, plan.log_dirs)
        done = all(state["state"] == "done" for state in (*states, *in_directories))
        lifted = False
        if not situation.moving and not copying and not preserve_throttles:
            topics = {tp.topic for tp in targets} if file is not None else set(situation.topics)
            lifted = remove_throttle(admin, situation, topics)
    if as_json:
        print_json(
            {
                "done": done,
                "throttle_removed": lifted,
                "partitions": states,
                "log_dirs": in_directories,
            }
        )
    else:
        _print_states(states, in_directories)
        if lifted:
            click.echo("removed the throttle", err=True)
    return 0 if done else 1


def _print_states(
    states: Sequence[Mapping[str, Any]], in_directories: Sequence[Mapping[str, Any]]
) -> None:
    for state in in_directories:
        if state["state"] != "done":
            click.echo(log_dir_state_text(state))
    if in_directories:
        arrived = sum(state["state"] == "done" for state in in_directories)
        total = counted(len(in_directories), "replica")
        click.echo(f"{arrived:,} of {total} in the directory of the plan")
    if not states and not in_directories:
        click.echo("No partition is moving.", err=True)
    if not states:
        return
    left = [state for state in states if state["state"] != "done"]
    if left:
        columns = ("replicas", "in_sync", "target")
        print_table(
            ["TOPIC", "PARTITION", "STATE", "REPLICAS", "IN SYNC", "TARGET"],
            [
                (
                    state["topic"],
                    state["partition"],
                    state["state"],
                    *(",".join(map(str, state[name])) for name in columns),
                )
                for state in left
            ],
        )
    click.echo(f"{len(states) - len(left):,} of {counted(len(states), 'partition')} done")


@reassign.command(
    short_help="Cancel moves under way.",
    epilog=examples("headrace reassign cancel plan.json", "headrace reassign cancel --all"),
)
@click.argument("file", type=click.File(encoding="utf-8"), required=False)
@click.option("--all", "everything", is_flag=True, help="Cancel every move under way.")
@click.option("--preserve-throttles", is_flag=True, help="Leave limits as they are.")
@client_options
def cancel(
    file: TextIO | None,
    everything: bool,
    preserve_throttles: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Cancel the moves of a plan that are under way, or all: added replicas are removed again.

    Finished moves stay. Limits that --throttle set are lifted.
    """
    if (file is None) != everything:
        raise click.UsageError("Give either a FILE or --all.")
    with open_admin(bootstrap, timeout_s) as admin:
        situation = read_placement(admin)
        if file is None:
            plan = PlanFile(
                {tp: moving.target for tp, moving in situation.moving.items()},
                log_dir_moves(admin, situation.alive),
            )
        else:
            plan = read_plan(file)
        targets = plan.replicas
        moving = [tp for tp in sorted(targets) if tp in situation.moving]
        failures = _cancel(admin, moving)
        stayed, errors = cancel_log_dir_moves(admin, plan.log_dirs)
        cancelled = sorted({tp for tp in moving if tp not in failures} | set(stayed))
        errors += failures.values()
        if not preserve_throttles and not admin.list_partition_reassignments():
            remove_throttle(admin, situation, {tp.topic for tp in targets})
    if as_json:
        partitions = [{"topic": tp.topic, "partition": tp.partition} for tp in cancelled]
        print_json({"cancelled": partitions})
    elif cancelled:
        click.echo(f"cancelled the moves of {counted(len(cancelled), 'partition')}")
    elif not errors:
        click.echo("No partition of the plan is moving.", err=True)
    return report(errors)


def _cancel(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, KafkaError]:
    if not partitions:
        return {}
    failures = errors_of(lambda: admin.alter_partition_reassignments(dict.fromkeys(partitions)))
    # A partition that has just arrived, or was deleted, needs no cancelling.
    over = (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, _GONE)
    return {tp: error for tp, error in failures.items() if error.code not in over}
