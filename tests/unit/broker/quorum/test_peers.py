"""Where the other nodes of a quorum are."""

from headrace.broker.quorum.peers import QuorumPeers
from headrace.config import BrokerConfig, Listener
from headrace.config.cluster import QuorumVoter
from headrace.net.addresses import Address
from headrace.raft.messages import BOOTSTRAP, Voter, VoterEndpoint, Voters

DIRECTORY = bytes(range(16))


def peers_of(voters: Voters = (), **settings: object) -> tuple[QuorumPeers, BrokerConfig]:
    config = BrokerConfig(node_id=1, **settings)  # type: ignore[arg-type]
    return QuorumPeers(config, lambda: voters), config


def test_the_configuration_comes_before_what_others_say_and_that_before_the_log() -> None:
    in_log = (
        Voter(2, endpoints=(VoterEndpoint("PLAINTEXT", "log", 2),)),
        Voter(3, endpoints=(VoterEndpoint("PLAINTEXT", "log", 3),)),
        Voter(4, endpoints=(VoterEndpoint("OTHER", "x", 4), VoterEndpoint("PLAINTEXT", "log", 4))),
    )
    peers, _ = peers_of(in_log, controller_quorum_voters=(QuorumVoter(2, "configured", 2),))
    for node_id in (2, 3):
        peers.learn(node_id, Address("told", node_id))
    assert peers.address_of(2) == Address("configured", 2)
    assert peers.address_of(3) == Address("told", 3)
    assert peers.address_of(4) == Address("log", 4)
    assert peers.address_of(5) is None
    peers.learn_endpoints(
        5, [VoterEndpoint("OTHER", "x", 5), VoterEndpoint("PLAINTEXT", "itself", 5)]
    )
    assert peers.address_of(5) == Address("itself", 5)


def test_a_node_alone_is_its_only_voter_where_it_listens() -> None:
    peers, config = peers_of(listeners=(Listener("PLAINTEXT", "", 0),))
    peers.set_own([VoterEndpoint("PLAINTEXT", "host", 9092)])
    (voter,) = peers.configured_voters(config, DIRECTORY)
    assert (voter.node_id, voter.directory_id) == (1, DIRECTORY)
    assert peers.address_of(1) == Address("host", 9092)
    # Its address is not known when the voters are first looked at, but when they are written.
    assert peers.with_own_endpoints(Voter(1)).endpoints == (
        VoterEndpoint("PLAINTEXT", "host", 9092),
    )
    assert peers.with_own_endpoints(Voter(2)).endpoints == ()


def test_a_node_without_the_role_or_with_others_to_ask_founds_nothing() -> None:
    peers, config = peers_of(process_roles=("broker",))
    assert peers.configured_voters(config, DIRECTORY) == ()
    peers, config = peers_of(controller_quorum_bootstrap_servers=("a:1", "b:2"))
    assert peers.configured_voters(config, DIRECTORY) == ()


def test_bootstrap_servers_take_turns_when_one_does_not_answer() -> None:
    peers, _ = peers_of(controller_quorum_bootstrap_servers=("a:1", "b:2"))
    assert peers.has_bootstrap
    assert peers.address_of(BOOTSTRAP) == Address("a", 1)
    peers.note_failure(2)
    assert peers.address_of(BOOTSTRAP) == Address("a", 1)
    peers.note_failure(BOOTSTRAP)
    assert peers.address_of(BOOTSTRAP) == Address("b", 2)
    peers.note_failure(BOOTSTRAP)
    assert peers.address_of(BOOTSTRAP) == Address("a", 1)
