"""Several nodes keep one metadata log: elections, losses, restarts, snapshots, failing disks."""

import asyncio
import shutil
from pathlib import Path

import pytest

from headrace.broker.quorum import wire
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import Image
from headrace.metadata.records import decode_control_batch, encode_record
from headrace.protocol.apis import Api
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages import vote
from headrace.protocol.records import encode_batch
from headrace.protocol.schema import Message
from headrace.raft.messages import Voter, VoterEndpoint, VoteRequest, VoteResponse
from headrace.storage.data_directory import METADATA_LOG
from headrace.storage.files import Files
from headrace.storage.log import Log
from tests.unit.broker.quorums import Cluster, Member, put


def test_a_single_node_is_active_without_waiting(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, voters=1)

    async def test() -> None:
        cluster.start()
        (node,) = cluster.members.values()
        began = cluster.clock.seconds
        await node.store.ready()
        assert node.store.is_active and node.quorum.leader.leader_id == 1
        assert cluster.clock.seconds - began < 0.01
        assert await node.put("a", "1") == 1
        assert node.value("a") == "1"

    cluster.run(test())


def test_three_nodes_elect_one_and_all_see_what_it_commits(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, observers=1)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        offset = await leader.put("a", "1")
        for member in cluster.members.values():
            # At once: nobody waits for the next fetch to hear what is committed.
            await member.store.image_at(offset + 1, 0.02)
            assert member.value("a") == "1"
            await member.store.ready()
            if member is not leader:
                with pytest.raises(KafkaError) as refused:
                    await member.put("b", "2")
                assert refused.value.code is ErrorCode.NOT_CONTROLLER

    cluster.run(test())


def test_another_node_takes_over_from_a_leader_that_died(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        first = await cluster.leader()
        await first.put("a", "1")
        began = cluster.clock.seconds
        await first.kill()
        second = await cluster.leader()
        # Refused connections tell of the death: no timeout has to pass.
        assert cluster.clock.seconds - began < 1.0
        assert second.value("a") == "1"
        assert second.quorum.leader.epoch > first.quorum.leader.epoch
        offset = await second.put("a", "2")
        first.start()
        await first.store.image_at(offset + 1, 5.0)
        assert first.value("a") == "2"

    cluster.run(test())


def test_a_leader_that_stops_hands_over_at_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        first = await cluster.leader()
        await first.put("a", "1")
        began = cluster.clock.seconds
        await first.stop()
        second = await cluster.leader()
        assert cluster.clock.seconds - began < 0.3
        assert (first.node_id, "EndQuorumEpochRequest") in cluster.network.asked
        assert second.value("a") == "1"

    cluster.run(test())


def test_a_machine_on_which_nothing_ran_for_a_while_keeps_its_leader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        epoch = leader.quorum.leader.epoch
        for _ in range(5):
            # The timers of all three are due before the requests in their sockets are read.
            cluster.clock.seconds += 2 * leader.config.controller_quorum_fetch_timeout_ms / 1000
            await asyncio.sleep(0.5)
        assert await cluster.leader() is leader
        assert leader.quorum.leader.epoch == epoch

    cluster.run(test())


def test_an_isolated_leader_gives_up_and_answers_its_commands(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        old = await cluster.leader()
        await old.put("a", "1")
        cluster.network.isolate(old.node_id)
        with pytest.raises(KafkaError) as refused:
            await old.put("a", "lost")
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert not old.store.is_active
        others = [node_id for node_id in cluster.members if node_id != old.node_id]
        new = await cluster.leader(*others)
        offset = await new.put("a", "2")
        assert old.value("a") == "1"
        cluster.network.heal()
        await old.store.image_at(offset + 1, 5.0)
        assert old.value("a") == "2"
        await cluster.until(lambda: old.log.log_end_offset == new.log.log_end_offset)
        assert log_bytes(old) == log_bytes(new)

    cluster.run(test())


def log_bytes(member: Member) -> bytes:
    log = member.log
    return bytes(log.read(log.log_start_offset, 1 << 20, log.log_end_offset).records)


def test_all_nodes_restarted_at_once_have_all_that_was_committed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        for number in range(20):
            await leader.put(f"k{number}", "v")
        epoch = leader.quorum.leader.epoch
        for member in cluster.members.values():
            await member.kill()
        cluster.start()
        leader = await cluster.leader()
        assert leader.quorum.leader.epoch > epoch
        for member in cluster.members.values():
            await member.store.ready()
            assert all(member.value(f"k{number}") == "v" for number in range(20))

    cluster.run(test())


def test_a_wiped_node_cannot_help_to_forget(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        behind, wiped = (value for value in cluster.members.values() if value is not leader)
        await cluster.until(lambda: behind.store.image_offset == leader.store.image_offset)
        await behind.kill()
        await leader.put("a", "1")
        await wiped.kill()
        await leader.kill()
        shutil.rmtree(tmp_path / str(wiped.node_id))
        # One lacks the record and the other has nothing: together they must not elect anybody.
        behind.start()
        wiped.start()
        await asyncio.sleep(10)
        assert not cluster.active
        leader.start()
        new = await cluster.leader()
        assert new.value("a") == "1"
        offset = await new.put("b", "2")
        await wiped.store.image_at(offset + 1, 5.0)
        assert wiped.value("a") == "1" and wiped.value("b") == "2"

    cluster.run(test())


def test_snapshots_take_the_place_of_old_records(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, metadata_log_max_record_bytes_between_snapshots=2000)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        late = next(value for value in cluster.members.values() if value is not leader)
        await late.kill()
        for number in range(200):
            await leader.put(f"k{number % 10}", str(number))
        assert leader.log.log_start_offset > 0
        assert len(leader.quorum.log.snapshots.ids) == 2
        assert leader.log.segments[0].base_offset > 0
        late.start()
        await late.store.image_at(leader.store.image_offset, 5.0)
        assert late.store.image == leader.store.image
        assert late.log.log_start_offset > 0
        # And all of it again, from snapshots.
        for member in cluster.members.values():
            await member.kill()
        cluster.start()
        again = await cluster.leader()
        assert again.value("k9") == "199"
        await again.put("k9", "200")
        await cluster.until(lambda: all(m.value("k9") == "200" for m in cluster.members.values()))

    cluster.run(test())


def test_a_failed_flush_of_the_log_ends_the_nodes_part(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        await leader.put("a", "1")
        leader.files.is_broken = True
        with pytest.raises(KafkaError):
            await leader.put("a", "2")
        assert len(leader.fatal) == 1
        assert not leader.store.is_active and not leader.quorum.is_leader
        others = [node_id for node_id in cluster.members if node_id != leader.node_id]
        new = await cluster.leader(*others)
        assert await new.put("b", "1")

    cluster.run(test())


def test_a_vote_that_cannot_be_written_is_not_given(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start(1, 2)
        for node_id in (1, 2):
            cluster.members[node_id].files.is_broken = True
        await asyncio.sleep(5)
        assert not cluster.active
        assert any(cluster.members[node_id].fatal for node_id in (1, 2))

    cluster.run(test())


def test_who_waits_already_hears_at_once_what_is_committed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, voters=2, observers=1)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        observer = cluster.members[3]
        voter = cluster.members[3 - leader.node_id]
        voter.workers.held = True
        writing = asyncio.create_task(leader.put("a", "1"))
        await asyncio.sleep(0.1)
        # It has the record, and its next fetch waits for news.
        assert observer.log.log_end_offset == leader.log.log_end_offset
        assert observer.value("a") is None
        voter.workers.held = False
        offset = await writing
        await observer.store.image_at(offset + 1, 0.01)

    cluster.run(test())


def test_a_vote_is_remembered(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    def asks(candidate: int) -> vote.VoteRequest:
        request = VoteRequest(7, candidate, bytes(16), 0, 0, pre_vote=False)
        message = wire.encode_request(request, Voter(1), (), "test")
        assert isinstance(message, vote.VoteRequest)
        return message

    async def test() -> None:
        voter = cluster.members[1]
        voter.start()
        stranger = asks(2)
        stranger.cluster_id = None
        with pytest.raises(KafkaError, match="INCONSISTENT_CLUSTER_ID"):
            voter.quorum.vote(stranger)
        assert granted(voter.quorum.vote(asks(2)))
        await voter.kill()
        voter.start()
        assert not granted(voter.quorum.vote(asks(3)))
        assert granted(voter.quorum.vote(asks(2)))
        await voter.kill()
        shutil.rmtree(tmp_path / "1")
        voter.start()
        voter.files.is_broken = True
        with pytest.raises(KafkaError):
            voter.quorum.vote(asks(3))
        assert voter.fatal

    cluster.run(test())


def granted(message: Message) -> bool:
    response, _ = wire.decode_response(message)
    assert isinstance(response, VoteResponse)
    return response.granted


def test_voters_are_added_and_removed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, voters=1, observers=2)

    async def test() -> None:
        cluster.start()
        first = await cluster.leader()
        for node_id in (2, 3):
            endpoint = VoterEndpoint("PLAINTEXT", f"10.0.0.{node_id}", 9092)
            voter = Voter(node_id, endpoints=(endpoint,))
            await first.quorum.add_voter(voter, 5.0, wait=True)
        assert [voter.node_id for voter in first.quorum.voters] == [1, 2, 3]
        await first.put("a", "1")
        await first.quorum.remove_voter(1, 5.0)
        second = await cluster.leader()
        assert second is not first
        await first.kill()
        await second.put("a", "2")
        for member in cluster.members.values():
            if member.is_up:
                await member.kill()
        # Who votes is in the log now, whatever the configuration says.
        cluster.start(2, 3)
        third = await cluster.leader(2, 3)
        assert [voter.node_id for voter in third.quorum.voters] == [2, 3]
        assert third.value("a") == "2"

    cluster.run(test())


def test_a_lone_voter_tells_where_it_is(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, voters=1, controller_quorum_voters=())

    async def test() -> None:
        cluster.start()
        (node,) = cluster.members.values()
        [voter] = node.quorum.voters
        assert voter.endpoints == (VoterEndpoint("PLAINTEXT", "10.0.0.1", 9092),)

    cluster.run(test())


def test_other_voters_are_asked_what_they_support(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        other = leader.node_id % 3 + 1
        assert await leader.quorum.feature_ranges_of(other) == {
            "a": (1, leader.quorum.leader.epoch)
        }
        assert await leader.quorum.served_apis_of(other) == frozenset({int(Api.CREATE_ACLS)})
        await cluster.members[other].kill()
        assert await leader.quorum.feature_ranges_of(other) is None
        assert await leader.quorum.served_apis_of(other) is None

    cluster.run(test())


def test_voters_of_the_configuration_are_put_into_the_log(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        await leader.quorum.record_voters(5.0)
        for member in cluster.members.values():
            await member.store.image_at(leader.log.log_end_offset, 5.0)
            assert member.quorum.kraft_version == 1
            assert [voter.endpoints[0].host for voter in member.quorum.voters] == [
                f"10.0.0.{node_id}" for node_id in (1, 2, 3)
            ]

    cluster.run(test())


def test_the_first_record_of_voters_begins_a_kraft_version(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, voters=1, observers=1)

    async def test() -> None:
        cluster.start()
        first = await cluster.leader()
        assert first.quorum.kraft_version == 0
        await first.quorum.add_voter(Voter(2), 5.0, wait=True)
        await first.quorum.remove_voter(2, 5.0)
        assert first.quorum.kraft_version == 1
        data = first.log.read(0, 1 << 20, first.log.log_end_offset).records
        told = [
            type(message).__name__
            for header in scan_headers(data)
            if header.is_control
            for message in decode_control_batch(data, header)
        ]
        assert told == ["LeaderChangeMessage", "KRaftVersionRecord", *(["VotersRecord"] * 2)]
        await first.kill()
        first.start()
        assert first.quorum.kraft_version == 1

    cluster.run(test())


def test_a_log_from_before_there_was_a_quorum_is_taken_over(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, voters=1)
    directory = tmp_path / "1" / str(METADATA_LOG)
    log = Log.open(Files(), str(directory), METADATA_LOG, TopicConfig(), 0)
    record = put("a", "1")(Image(), 0).records[0]
    batch = encode_batch([(0, None, encode_record(record), ())])
    log.append(batch, scan_headers(batch), 0, 0)
    log.close()

    async def test() -> None:
        cluster.start()
        (node,) = cluster.members.values()
        await node.store.ready()
        assert node.value("a") == "1"
        assert await node.put("b", "2") == 2

    cluster.run(test())


@pytest.mark.parametrize("voters", [1, 2])
def test_nothing_is_committed_that_is_not_on_disk(tmp_path: Path, voters: int) -> None:
    cluster = Cluster(tmp_path, voters)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()
        await leader.put("a", "1")
        # With two voters the other one's disk is waited for.
        slow = next((value for value in cluster.members.values() if value is not leader), leader)
        slow.workers.held = True
        writing = asyncio.create_task(leader.put("a", "2"))
        await asyncio.sleep(0.3)
        assert slow.log.log_end_offset == leader.log.log_end_offset
        assert not writing.done() and leader.value("a") == "1"
        slow.workers.held = False
        await writing
        assert leader.value("a") == "2"

    cluster.run(test())
