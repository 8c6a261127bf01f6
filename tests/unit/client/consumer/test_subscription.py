"""Positions, generations, and what the application is done with."""

import re

import pytest

from headrace.client.consumer.completed_fetch import RecordRun, completed_fetch_of
from headrace.client.consumer.subscription import (
    PartitionState,
    SubscriptionMode,
    SubscriptionState,
)
from headrace.client.errors import IllegalState
from headrace.client.types import OffsetAndMetadata
from headrace.protocol.consumer_records import ConsumerRecord
from tests.unit.client.consumer.batches import OTHER, TP, batch, fetched, reading


def rows(*offsets: int, next_offset: int = 0) -> RecordRun:
    records = [ConsumerRecord("orders", 0, offset) for offset in offsets]
    made = RecordRun(records, offsets[0], next_offset or offsets[-1] + 1, 100)
    made.stop = made.ready = len(records)
    return made


def hand_out(
    subscription: SubscriptionState, state: PartitionState, given: RecordRun, count: int
) -> None:
    """As a poll does: `count` of the rows go to the application."""
    state.given = given
    given.index = count
    subscription.gave_out(state)


def test_topics_pattern_and_partitions_exclude_each_other() -> None:
    subscription = SubscriptionState()
    subscription.set_topics(frozenset(["orders"]))
    subscription.set_topics(frozenset(["payments"]))
    assert subscription.topics == {"payments"}
    with pytest.raises(IllegalState, match=r"reads topics.*cannot read a pattern.*unsubscribe"):
        subscription.set_pattern(re.compile("x"))
    with pytest.raises(IllegalState, match="cannot read partitions besides"):
        subscription.set_partitions([TP])
    subscription.clear()
    assert (subscription.mode, subscription.topics) == (SubscriptionMode.NONE, frozenset())
    subscription.set_partitions([TP])
    with pytest.raises(IllegalState, match="reads partitions"):
        subscription.set_topics(frozenset(["orders"]))


def test_partitions_that_stay_keep_their_positions() -> None:
    subscription = reading(TP, OTHER, position=5)
    subscription.replace([OTHER])
    assert list(subscription.states) == [OTHER]
    assert subscription.positions() == {OTHER: 5}
    subscription.replace([TP, OTHER])
    assert subscription.positions() == {OTHER: 5}
    assert [state.tp for state in subscription.lacking_position()] == [TP]


def test_what_is_not_assigned_cannot_be_moved() -> None:
    subscription = reading(TP)
    for call in (subscription.pause, subscription.resume, lambda tp: subscription.seek(tp, 1)):
        with pytest.raises(IllegalState, match=r"orders-1 is not assigned.*assignment\(\)"):
            call(OTHER)


def test_a_seek_throws_away_what_was_fetched_and_what_is_on_its_way() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0, 3)])
    generation = state.generation
    late = completed_fetch_of(batch(3), 3)
    assert late is not None
    subscription.seek(TP, 100)
    assert (state.position, state.fetch_offset, subscription.buffered_bytes) == (100, 100, 0)
    assert not subscription.add(state, generation, late)
    assert subscription.next_ready() is None
    assert state.is_fetchable


def test_an_answer_for_an_assignment_that_is_over_is_not_taken() -> None:
    subscription = reading(TP)
    before = subscription.state(TP)
    late = completed_fetch_of(batch(0), 0)
    assert late is not None
    subscription.drop([TP])
    subscription.replace([TP])
    assert not subscription.add(before, before.generation, late)
    assert not subscription.is_current(before, before.generation)


def test_a_position_found_after_a_seek_is_not_taken() -> None:
    subscription = reading(TP)
    state = subscription.state(TP)
    subscription.reset(state, -1)
    generation = state.generation
    assert subscription.lacking_position() == [state]
    subscription.seek(TP, 7)
    subscription.found(state, generation, 99)
    assert state.position == 7


def test_a_found_position_is_where_fetching_begins() -> None:
    subscription = SubscriptionState()
    subscription.set_partitions([TP])
    state = subscription.state(TP)
    assert not state.is_fetchable
    subscription.found(state, state.generation, 42)
    assert (state.position, state.fetch_offset, state.done_offset) == (42, 42, 42)
    assert state.is_fetchable


def test_a_partition_is_fetched_ahead_until_two_chunks_wait() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0)])
    assert state.is_fetchable
    fetched(subscription, [batch(1)])
    assert not state.is_fetchable
    assert state.fetch_offset == 2


def test_chunks_count_until_they_were_read() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0, 2)])
    size = subscription.buffered_bytes
    assert size == len(batch(0, 2))
    given = rows(0, 1)
    given.end_position = size
    hand_out(subscription, state, given, 1)
    assert subscription.buffered_bytes == size
    given.index = 2
    assert subscription.gave_out(state)
    assert (subscription.buffered_bytes, list(state.completed_fetches)) == (0, [])


def test_a_paused_partition_is_neither_fetched_nor_handed_out() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0)])
    subscription.pause(TP)
    assert not state.is_fetchable
    assert subscription.next_ready() is None
    subscription.resume(TP)
    assert subscription.next_ready() is state


def test_pausing_stops_an_iteration_where_it_is() -> None:
    subscription = reading(TP)
    state = subscription.state(TP)
    given = rows(0, 1, 2)
    given.iterating = True
    hand_out(subscription, state, given, 1)
    subscription.pause(TP)
    assert given.stop == 1
    assert (state.position, state.done_offset) == (1, 0)


def test_partitions_take_turns_in_the_order_of_their_data() -> None:
    subscription = reading(TP, OTHER)
    first = fetched(subscription, [batch(0)])
    second = fetched(subscription, [batch(0)], OTHER)
    fetched(subscription, [batch(1)])
    assert subscription.next_ready() is first
    subscription.put_back(first)
    assert subscription.next_ready() is second
    subscription.put_back(second)
    assert subscription.next_ready() is first


def test_a_half_read_chunk_comes_first() -> None:
    subscription = reading(TP, OTHER)
    first = fetched(subscription, [batch(0, 2)])
    fetched(subscription, [batch(0)], OTHER)
    assert subscription.next_ready() is first
    hand_out(subscription, first, rows(0, 1), 1)
    subscription.put_back(first)
    assert subscription.next_ready() is first


def test_what_a_poll_returned_is_done_when_the_next_begins() -> None:
    subscription = reading(TP)
    state = subscription.state(TP)
    hand_out(subscription, state, rows(0, 1, 2, 3), 3)
    assert subscription.positions() == {TP: 3}
    assert subscription.done_offsets() == {TP: 0}
    subscription.begin_poll()
    assert subscription.done_offsets() == {TP: 3}


def test_an_iteration_is_done_with_what_comes_before_its_record() -> None:
    subscription = reading(TP)
    state = subscription.state(TP)
    given = rows(0, 1, 5, next_offset=9)
    given.iterating = True
    hand_out(subscription, state, given, 1)
    assert (state.position, state.done_offset) == (1, 0)
    given.index = 2
    assert (state.position, state.done_offset) == (2, 1)
    given.index = 3
    assert (state.position, state.done_offset) == (9, 5)
    subscription.begin_poll()
    assert (state.position, state.done_offset) == (9, 9)


def test_closing_counts_what_poll_returned_and_not_the_record_at_hand() -> None:
    subscription = reading(TP, OTHER)
    polled, iterated = subscription.state(TP), subscription.state(OTHER)
    hand_out(subscription, polled, rows(0, 1), 2)
    given = rows(0, 1)
    given.iterating = True
    hand_out(subscription, iterated, given, 2)
    subscription.finish_given(iterated_too=False)
    assert subscription.done_offsets() == {TP: 2, OTHER: 1}


def test_offsets_can_be_asked_for_some_partitions() -> None:
    subscription = reading(TP, OTHER)
    assert subscription.done_offsets([OTHER]) == {OTHER: 0}
    assert subscription.done_offsets([]) == {}


def test_a_partition_that_is_being_revoked_gives_nothing_and_keeps_its_offsets() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0)])
    subscription.revoke([TP, OTHER])
    assert subscription.next_ready() is None
    assert not state.is_fetchable
    assert subscription.done_offsets([TP]) == {TP: 0}


def test_a_corrupt_chunk_ends_fetching_until_a_seek() -> None:
    subscription = reading(TP)
    bad = bytearray(batch(0))
    bad[8:12] = (1).to_bytes(4, "big")
    state = fetched(subscription, [bytes(bad)])
    assert not state.is_fetchable
    subscription.seek(TP, 1)
    assert state.is_fetchable


def test_an_offset_out_of_range_is_looked_at_when_the_data_before_it_was_read() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0)])
    state.is_out_of_range = True
    assert not state.is_fetchable
    state.completed_fetches.clear()
    assert state.is_fetchable


def test_what_did_not_reach_the_application_is_taken_back() -> None:
    subscription = reading(TP, OTHER, position=2)
    state, untouched = subscription.state(TP), fetched(subscription, [batch(2, 2)], OTHER)
    hand_out(subscription, state, rows(2, 3), 2)
    subscription.gave_out(untouched)
    subscription.take_back()
    assert subscription.positions() == {TP: 2, OTHER: 2}
    assert subscription.done_offsets() == {TP: 2, OTHER: 2}
    assert (state.fetch_offset, len(untouched.completed_fetches)) == (2, 1)


def test_offsets_are_committed_with_the_epoch_of_the_record_before_them() -> None:
    subscription = reading(TP)
    batches = [batch(0, 2, leader_epoch=3), batch(2, leader_epoch=3), batch(3, 2, leader_epoch=5)]
    state = fetched(subscription, batches)
    fetched(subscription, [batch(5, leader_epoch=5)])
    epochs = [state.epoch_before(offset) for offset in range(7)]
    assert epochs == [-1, 3, 3, 3, 5, 5, 5]
    assert subscription.committable({TP: 3}) == {TP: OffsetAndMetadata(3, leader_epoch=3)}


def test_epochs_that_are_done_are_forgotten() -> None:
    subscription = reading(TP)
    state = subscription.state(TP)
    for number in range(100):
        fetched(subscription, [batch(number, leader_epoch=number)])
        hand_out(subscription, state, rows(number, next_offset=number + 1), 1)
        subscription.begin_poll()
        assert state.epoch_before(number + 1) == number
    assert len(state.epochs) < 4


def test_what_is_taken_back_keeps_its_epoch() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0, leader_epoch=3)])
    fetched(subscription, [batch(1, leader_epoch=4)])
    hand_out(subscription, state, rows(0, next_offset=1), 1)
    subscription.begin_poll()
    hand_out(subscription, state, rows(1, next_offset=2), 1)
    subscription.take_back()
    assert (state.position, state.epoch_before(1), state.fetch_epoch) == (1, 3, 3)
