"""DescribeLogDirs with the health of replicas and directories, as operators ask for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.handlers.log_dirs import describe_log_dirs
from headrace.broker.request import RequestContext
from headrace.protocol.apis import RequestHeader
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.storage.damage import DamagedLog
from headrace.storage.scrubbing import ScrubProgress, SegmentDamage, SegmentKey
from headrace.types import TopicPartition
from tests.unit.broker.replication.test_replica_manager import (
    A,
    B,
    Holder,
    hold,
    image,
    partition,
    topic,
)
from tests.unit.storage.logs import append

__all__ = ["hold"]

ORDERS = TopicPartition("orders", 0)
Open = Callable[..., Holder]


async def at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


def asked(
    here: Holder, *, include_health: bool = True, scrubbed: ScrubProgress | None = None
) -> DescribeLogDirsResponse:
    node = SimpleNamespace(
        logs=here.logs,
        replicas=here.replicas,
        workers=SimpleNamespace(read=at_once),
        scrub_progress={} if scrubbed is None else {here.logs.directories[0]: scrubbed},
    )
    context = RequestContext(cast("Any", node), RequestHeader(35, 5, 0, "test", 0), "127.0.0.1")
    request = DescribeLogDirsRequest(topics=None, include_health=include_health)
    answer = describe_log_dirs(context, request)
    if isinstance(answer, DescribeLogDirsResponse):
        return answer

    async def wait() -> DescribeLogDirsResponse:
        return await answer

    return asyncio.run(wait())


def problems(answer: DescribeLogDirsResponse) -> list[tuple[str, int, str]]:
    return [
        (replica_problem.topic, replica_problem.partition_index, replica_problem.state)
        for replica_problem in answer.replica_problems
    ]


def test_nothing_is_added_for_clients_that_do_not_ask(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2, 1))))
    plain = asked(here, include_health=False)
    assert plain.replica_problems == []
    assert [result.health for result in plain.results] == [None]
    assert problems(asked(here)) == []


def test_a_replica_that_stopped_says_why(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 2, 1))))
    here.replicas.replica_of(*ORDERS).mark_diverged(3)
    [problem] = asked(here).replica_problems
    assert (problem.topic, problem.partition_index, problem.state) == ("orders", 0, "stopped")
    assert "broker 1, which leads in epoch 0, does not have them" in problem.reason
    assert "headrace log strays set-aside" in problem.reason
    # Until it has another leader, which may have them.
    here.apply(image(topic("orders", A, partition(3, 2, 1, 3, epoch=1))))
    assert problems(asked(here)) == []


def test_lost_damaged_and_offline_replicas_are_told_apart(hold: Open, tmp_path: Path) -> None:
    here = hold()
    three = topic("orders", A, *(partition(2, 2, 1) for _ in range(3)))
    here.apply(image(three))
    for index in range(3):
        append(here.replicas.leader_of("orders", index).log, 3)
    here.stop()
    for path in (tmp_path / "data" / "orders-0").iterdir():
        path.unlink()
    (tmp_path / "data" / "orders-0").rmdir()
    again = hold()
    again.apply(image(three))
    damage = DamagedLog("orders-1", "a bit flipped", 0, 1, 10)
    again.replicas.report_damage(TopicPartition("orders", 1), damage)
    again.logs.logs[TopicPartition("orders", 2)].take_offline(damage)
    answer = asked(again)
    assert sorted(problems(answer)) == [
        ("orders", 0, "lost"),
        ("orders", 1, "damaged"),
        ("orders", 2, "offline"),
    ]
    assert all(replica_problem.reason for replica_problem in answer.replica_problems)


def test_scrubbing_and_its_findings_are_told(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2))))
    damage = SegmentDamage(SegmentKey(ORDERS, 10), 12, 15)
    answer = asked(here, scrubbed=ScrubProgress(5, -1, 3, 4000, damage=(damage,)))
    [result] = answer.results
    assert result.health is not None
    assert result.health.scrub_started_ms == 5
    assert result.health.scrub_finished_ms == -1
    assert result.health.scrubbed_segments == 3
    assert result.health.scrubbed_bytes == 4000
    assert result.health.damaged_segments == 1
    [problem] = answer.replica_problems
    assert problem.state == "damaged"
    assert "offsets 12 to 14 cannot be read" in problem.reason
    assert f"headrace log repair {result.log_dir}/orders-0" in problem.reason


def test_logs_that_were_set_aside_are_told_with_the_reason(hold: Open, tmp_path: Path) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2))))
    append(here.replicas.leader_of("orders", 0).log, 3)
    here.stop()
    (tmp_path / "data" / "__cluster_metadata-0.77-damaged").mkdir()
    again = hold()
    again.apply(image(topic("audit", B, partition(2, 2))))
    [result] = asked(again).results
    assert result.health is not None
    [stray, metadata] = result.health.set_aside
    assert stray.name.startswith("orders-0.")
    assert "the metadata knows no such partition" in stray.reason
    assert metadata.name == "__cluster_metadata-0.77-damaged"
