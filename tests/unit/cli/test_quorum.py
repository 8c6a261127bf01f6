import pytest

from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.types import uuid_text
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.test_cluster import FOUR, ONE, QuorumBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> QuorumBrokers:
    brokers = QuorumBrokers()
    use(brokers, monkeypatch, "quorum")
    monkeypatch.setattr("headrace.cli.quorum.now_ms", lambda: 2500)
    return brokers


def test_the_quorum_is_shown(brokers: QuorumBrokers) -> None:
    assert invoke("quorum", "describe").stdout.splitlines() == [
        "Leader 1, epoch 3, high watermark 8",
        "NODE  ROLE      LOG END  LAG  LAST FETCH  CAUGHT UP  DIRECTORY",
        f"1     leader    9        0                           {uuid_text(ONE)}",
        f"4     observer  7        2    2.0 s ago   2.1 s ago  {uuid_text(FOUR)}",
    ]


def test_the_quorum_is_told_to_programs(brokers: QuorumBrokers) -> None:
    found = document(invoke("quorum", "describe", "--json"))
    assert (found["leader"], found["epoch"], found["high_watermark"]) == (1, 3, 8)
    assert found["nodes"][0]["endpoints"] == {"CONTROLLER": "10.0.0.1:9092"}
    assert found["nodes"][1] == {
        "id": 4,
        "role": "observer",
        "directory_id": uuid_text(FOUR),
        "log_end_offset": 7,
        "last_fetch_ms": 500,
        "last_caught_up_ms": 400,
        "endpoints": {},
    }


@pytest.mark.parametrize(
    ("arguments", "listener"),
    [
        ([], ("CONTROLLER", "10.0.0.4", 9092)),
        (["--endpoint", "h:9093"], ("CONTROLLER", "h", 9093)),
        (["--endpoint", "INNER=h:9093"], ("INNER", "h", 9093)),
    ],
)
def test_an_observer_becomes_a_voter(
    brokers: QuorumBrokers, arguments: list[str], listener: tuple[str, str, int]
) -> None:
    result = invoke("quorum", "add", "4", *arguments)
    assert (result.exit_code, result.stdout) == (0, "node 4 is a voter now\n")
    [request] = brokers.sent(AddRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (4, FOUR)
    assert [(listener.name, listener.host, listener.port) for listener in request.listeners] == [
        listener
    ]


def test_only_an_observer_can_become_a_voter(brokers: QuorumBrokers) -> None:
    assert "node 1 is a voter already" in invoke("quorum", "add", "1").stderr
    assert "node 7 does not follow the metadata log" in invoke("quorum", "add", "7").stderr
    assert brokers.sent(AddRaftVoterRequest) == []


def test_an_address_that_nobody_knows_must_be_given(brokers: QuorumBrokers) -> None:
    del brokers.nodes[4]
    result = invoke("quorum", "add", "4")
    assert result.exit_code == 1
    assert "say it with --endpoint HOST:PORT" in result.stderr


def test_the_last_voter_stays(brokers: QuorumBrokers) -> None:
    result = invoke("quorum", "remove", "1", "--yes")
    assert result.exit_code == 1
    assert "node 1 is the only voter" in result.stderr
    assert "node 4 is no voter" in invoke("quorum", "remove", "4", "--yes").stderr
    assert brokers.sent(RemoveRaftVoterRequest) == []


def test_a_voter_is_removed_when_that_is_meant(brokers: QuorumBrokers) -> None:
    brokers.has_two_voters = True
    assert invoke("quorum", "remove", "4").exit_code == 2, "there is no terminal to ask"
    result = invoke("quorum", "remove", "4", "--yes")
    assert (result.exit_code, result.stdout) == (0, "node 4 is no voter any more\n")
    [request] = brokers.sent(RemoveRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (4, FOUR)
