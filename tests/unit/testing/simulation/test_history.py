"""What clients did is compared with what is there in the end; each breach is found."""

import pytest

from headrace.testing.simulation.history import History, Violation
from headrace.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def history_of(acknowledged: int, *, producer: str = "p") -> tuple[History, list[bytes]]:
    history = History()
    values = [history.send(producer, P0, number) for number in range(4)]
    for offset, value in enumerate(values[:acknowledged]):
        history.acknowledge(value, offset)
    return history, values


def test_all_is_well_with_and_without_what_was_not_acknowledged() -> None:
    history, values = history_of(2)
    history.check({P0: dict(enumerate(values[:2]))})
    history.check({P0: dict(enumerate(values))})


def test_gaps_of_offsets_and_failed_records_are_allowed() -> None:
    history, values = history_of(1)
    history.check({P0: {0: values[0], 5: values[2], 6: values[3]}})


BREACHES: dict[str, tuple[dict[int, int], str]] = {
    "lost": ({0: 0}, "is lost"),
    "twice": ({0: 0, 1: 1, 2: 1}, "twice"),
    "reordered": ({0: 0, 1: 1, 2: 3, 3: 2}, "after number 3"),
    "elsewhere": ({0: 0, 2: 1}, "acknowledged at"),
}


@pytest.mark.parametrize("name", sorted(BREACHES))
def test_breaches_are_found(name: str) -> None:
    there, text = BREACHES[name]
    history, values = history_of(2)
    with pytest.raises(Violation, match=text):
        history.check({P0: {offset: values[number] for offset, number in there.items()}})


def test_record_nobody_sent_is_found() -> None:
    history, values = history_of(0)
    with pytest.raises(Violation, match="nobody sent"):
        history.check({P1: {0: values[0]}})


def test_what_a_consumer_saw_must_stay() -> None:
    history, values = history_of(0)
    history.see(P0, 0, values[0])
    history.check({P0: {0: values[0]}})
    with pytest.raises(Violation, match="in the end"):
        history.check({P0: {0: values[1]}})
    with pytest.raises(Violation, match="was read before"):
        history.see(P0, 0, values[2])


def test_unseen_is_what_was_acknowledged_and_not_read() -> None:
    history, values = history_of(2)
    assert history.unseen("p") == values[:2]
    history.see(P0, 0, values[0])
    assert history.unseen("p") == values[1:2]
    assert history.unseen("another") == []
