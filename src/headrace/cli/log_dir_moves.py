"""Moves of replicas between the data directories of a broker, for reassignment plans."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cli.clients import errors_of, outcomes_of
from headrace.cli.output import counted
from headrace.client.admin.admin import Admin
from headrace.client.admin.cluster import FutureReplica, LogDirectory
from headrace.errors import ErrorCode, KafkaError
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
