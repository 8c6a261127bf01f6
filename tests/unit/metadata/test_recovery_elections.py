"""Recovery elections: who is asked, who is waited for, and who leads by the answers."""

from dataclasses import replace

import pytest

from headrace.metadata.elections import RECOVERING
from headrace.metadata.recovery_elections import (
    LogEnd,
    LogEndQuestion,
    PendingElections,
    RecoveredPartition,
    WaitingElection,
)
from headrace.types import TopicPartition
from tests.unit.metadata.active import Active
from tests.unit.metadata.clusters import id_of, standing
from tests.unit.metadata.test_directories import lost
from tests.unit.metadata.test_eligible_replicas import active_of, silence, stand

TIMEOUT_MS = 300_000


def restarted(*back: int, min_isr: int = 2) -> Active:
    """Three replicas of which all restarted uncleanly, and some are back."""
    active = active_of(1, 2, 3, min_isr=min_isr)
    for broker_id in (1, 2, 3):
        active.register(broker_id, incarnation=9)
    for broker_id in back:
        active.beat(broker_id)
    return active


class Recovery:
    """The elections of one controller; `active` is its cluster."""

    def __init__(self, active: Active) -> None:
        self.active = active
        self.recoveries = PendingElections(TIMEOUT_MS)
        self.look()

    def look(self) -> None:
        self.recoveries.find_partitions(self.active.image)

    def asked(self) -> list[int]:
        return sorted(self.recoveries.questions(self.active.image))

    def answer(self, broker_id: int, epoch: int, offset: int) -> None:
        questions = self.recoveries.questions(self.active.image)[broker_id]
        for question in questions:
            broker_epoch = self.active.image.brokers[broker_id].epoch
            self.recoveries.answer(question, broker_id, broker_epoch, LogEnd(epoch, offset))

    def decide(self) -> list[RecoveredPartition]:
        return self.active.commit(self.recoveries.decide(self.active.image, self.active.now_ms))


def test_the_longest_log_leads_once_all_have_answered() -> None:
    recovery = Recovery(restarted(3, 2, 1))
    assert recovery.asked() == [1, 2, 3]
    recovery.answer(3, 4, 2000)
    recovery.answer(1, 4, 3000)
    assert recovery.decide() == []
    assert recovery.asked() == [2]
    [waiting] = recovery.recoveries.waiting(recovery.active.image)
    assert waiting == WaitingElection(TopicPartition("a", 0), frozenset({2}))
    recovery.answer(2, 4, 3000)
    [outcome] = recovery.decide()
    assert stand(recovery.active) == (1, (1,), (), ())
    [partition] = recovery.active.image.topics["a"].partitions
    assert partition.leader_recovery_state == RECOVERING, "the others may have to cut their logs"
    assert str(outcome) == (
        "a-0 is led by broker 1, whose log ends at offset 3000 of epoch 4: no replica was sure to"
        " have every acknowledged record, and of those that are back it has the most; broker 2 ends"
        " at offset 3000 of epoch 4; broker 3 ends at offset 2000 of epoch 4. All that could have"
        " more have answered: if machines lost power, acknowledged records after that offset that"
        " no replica had flushed are lost"
    )
    assert (outcome.is_complete, outcome.is_unanimous) == (True, False)
    recovery.look()
    assert len(recovery.recoveries) == 0


def test_replicas_that_have_the_same_have_lost_nothing() -> None:
    recovery = Recovery(restarted(3, 2, 1))
    for broker_id in (1, 2, 3):
        recovery.answer(broker_id, 4, 3000)
    [outcome] = recovery.decide()
    assert outcome.is_unanimous


def test_a_newer_epoch_counts_more_than_a_longer_log() -> None:
    recovery = Recovery(restarted(1, 2, 3))
    recovery.answer(1, 4, 9000)
    recovery.answer(2, 5, 100)
    recovery.answer(3, -1, 0)
    [outcome] = recovery.decide()
    assert outcome.leader == 2


def test_the_missing_are_waited_for_no_longer_than_the_timeout() -> None:
    active = restarted()
    recovery = Recovery(active)
    assert len(recovery.recoveries) == 0, "the time begins with the first answer"
    active.now_ms += TIMEOUT_MS
    active.beat(3)
    active.beat(2)
    recovery.look()
    recovery.answer(3, 4, 2000)
    recovery.answer(2, 4, 2500)
    assert recovery.decide() == []
    active.now_ms += TIMEOUT_MS - 1
    recovery.look()
    assert recovery.decide() == []
    active.now_ms += 1
    [outcome] = recovery.decide()
    assert (outcome.leader, outcome.missing) == (2, (1,))
    assert str(outcome).endswith(
        "broker 3 ends at offset 2000 of epoch 4; broker 1 did not answer in time. Acknowledged"
        " records after that offset are lost if only broker 1 had them"
    )


def test_a_replica_that_left_the_isr_is_waited_for_too() -> None:
    """It has what was committed before it left, which all others may have lost since."""
    active = active_of(1, 2, 3)
    silence(active, 1)
    for broker_id in (2, 3):
        active.register(broker_id, incarnation=9)
        active.beat(broker_id)
    recovery = Recovery(active)
    assert recovery.asked() == [2, 3]
    recovery.answer(2, 4, 7)
    recovery.answer(3, 4, 0)
    assert recovery.decide() == []
    active.beat(1)
    assert recovery.asked() == [1]
    recovery.answer(1, 4, 9)
    [outcome] = recovery.decide()
    assert (outcome.leader, outcome.missing) == (1, ())


def test_of_equal_logs_that_of_the_last_known_leads() -> None:
    active = active_of(1, 2, 3)
    silence(active, 1)
    for broker_id in (2, 3):
        active.register(broker_id, incarnation=9)
    for broker_id in (1, 2, 3):
        active.beat(broker_id)
    recovery = Recovery(active)
    for broker_id in (1, 2, 3):
        recovery.answer(broker_id, 4, 7)
    [outcome] = recovery.decide()
    assert outcome.leader == 2


NO_LOG = (-1, -1)


def test_a_replica_that_has_no_log_any_more_is_not_waited_for() -> None:
    active = restarted(1, 2, 3)
    lost(active, 2, 0)
    recovery = Recovery(active)
    assert recovery.asked() == [1, 2, 3]
    recovery.answer(2, *NO_LOG)
    recovery.answer(1, 4, 10)
    assert recovery.decide() == []
    recovery.answer(3, 4, 11)
    [outcome] = recovery.decide()
    assert (outcome.leader, outcome.lost) == (3, (2,))
    assert (
        "broker 2 lost its log. Acknowledged records after that offset are lost if only broker"
        in str(outcome)
    )


def test_after_the_loss_of_the_last_one_in_sync_everybody_else_is_waited_for() -> None:
    active = active_of(1, 2, 3, min_isr=1)
    active.alter(1, [1])
    silence(active, 3)
    lost(active, 1, 0)
    recovery = Recovery(active)
    recovery.answer(1, *NO_LOG)
    recovery.answer(2, 4, 10)
    assert recovery.decide() == []
    active.beat(3)
    recovery.answer(3, 4, 12)
    [outcome] = recovery.decide()
    assert (outcome.leader, outcome.lost) == (3, (1,))


def test_a_replica_on_a_failing_disk_is_waited_for() -> None:
    """Its disk may work again after a restart, with all that the others have lost."""
    active = restarted(1, 2, 3)
    lost(active, 3, 0)
    recovery = Recovery(active)
    recovery.answer(1, 4, 1)
    recovery.answer(2, -1, 0)
    assert recovery.decide() == [], "broker 3 answers with an error while its disk fails"
    active.register(3, incarnation=10)
    active.beat(3)
    recovery.look()
    for broker_id in recovery.asked():
        recovery.answer(broker_id, *{1: (4, 1), 2: (-1, 0), 3: (4, 45)}[broker_id])
    [outcome] = recovery.decide()
    assert (outcome.leader, outcome.damaged, outcome.is_complete) == (3, (), True)


def test_a_damaged_log_leads_if_its_sound_part_is_the_longest() -> None:
    active = restarted(1, 2, 3)
    lost(active, 2, 0)
    recovery = Recovery(active)
    recovery.answer(1, -1, 0)
    recovery.answer(2, 4, 26)
    recovery.answer(3, 4, 3)
    [outcome] = recovery.decide()
    assert (outcome.leader, outcome.damaged) == (2, (2,))
    assert str(outcome) == (
        "a-0 is led by broker 2, whose log ends at offset 26 of epoch 4, where it is damaged: no"
        " replica was sure to have every acknowledged record, and of those that are back it has the"
        " most; broker 1 ends at offset 0 of epoch -1; broker 3 ends at offset 3 of epoch 4."
        " Acknowledged records after that offset are lost if only broker 2 had them"
    )
    [partition] = active.image.topics["a"].partitions
    assert (partition.leader, partition.isr, partition.lost_replicas) == (2, (2,), ())


def test_of_equal_logs_a_sound_one_leads() -> None:
    active = restarted(1, 2, 3)
    lost(active, 1, 0)
    recovery = Recovery(active)
    recovery.answer(1, 4, 3)
    recovery.answer(2, 4, 3)
    recovery.answer(3, 4, 3)
    [outcome] = recovery.decide()
    assert (outcome.leader, outcome.damaged, outcome.is_complete) == (2, (1,), False)


def test_a_person_decides_where_every_log_is_damaged() -> None:
    active = restarted(1, 2, 3)
    for broker_id in (1, 2, 3):
        lost(active, broker_id, 0)
    recovery = Recovery(active)
    recovery.answer(1, 4, 10)
    recovery.answer(2, *NO_LOG)
    recovery.answer(3, 4, 11)
    assert recovery.decide() == []
    active.now_ms += TIMEOUT_MS
    assert recovery.decide() == []


def test_a_broker_that_was_taken_out_of_the_cluster_is_not_waited_for() -> None:
    active = restarted(1, 2)
    brokers = {entry: broker for entry, broker in active.image.brokers.items() if entry != 3}
    active.image = replace(active.image, brokers=brokers)
    recovery = Recovery(active)
    recovery.answer(1, 4, 10)
    recovery.answer(2, 4, 10)
    [outcome] = recovery.decide()
    assert outcome.leader == 1


def test_an_answer_of_an_earlier_run_does_not_count() -> None:
    active = restarted(1, 2, 3)
    recovery = Recovery(active)
    for broker_id in (1, 2, 3):
        recovery.answer(broker_id, 4, 100 + broker_id)
    active.register(3, incarnation=10)
    assert recovery.decide() == []
    active.beat(3)
    assert recovery.asked() == [3]
    recovery.answer(3, 4, 50)
    [outcome] = recovery.decide()
    assert outcome.leader == 2


@pytest.mark.parametrize("leader_epoch", [0, 99])
def test_an_answer_for_another_leader_epoch_does_not_count(leader_epoch: int) -> None:
    active = restarted(1, 2, 3)
    recovery = Recovery(active)
    question = LogEndQuestion(id_of("a"), TopicPartition("a", 0), leader_epoch)
    recovery.recoveries.answer(question, 1, active.image.brokers[1].epoch, LogEnd(1, 1))
    assert recovery.asked() == [1, 2, 3]


def test_partitions_that_have_somebody_eligible_need_no_recovery() -> None:
    active = active_of(1, 2, 3)
    silence(active, 1)
    active.register(2, incarnation=9)
    silence(active, 3)
    active.beat(2)
    assert stand(active) == (-1, (), (3,), (2,))
    recovery = Recovery(active)
    assert recovery.asked() == []
    assert recovery.decide() == []
    active.register(3, incarnation=9, clean=True)
    active.beat(3)
    assert standing(active.image, "a")[0][0] == 3
