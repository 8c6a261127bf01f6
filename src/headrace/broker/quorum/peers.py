"""Addresses of the other nodes of the quorum, and links to them.

An address is taken from the configuration, else from responses of leaders, else from the log.
"""

from collections.abc import Callable, Iterable

from headrace.broker.cluster.channels import NodeChannel
from headrace.config import BrokerConfig
from headrace.net.addresses import Address, parse_addresses
from headrace.raft.messages import BOOTSTRAP, NOBODY, Voter, VoterEndpoint, Voters

ChannelFactory = Callable[[Callable[[], Address | None], str], NodeChannel]


class QuorumPeers:
    """Addresses of the quorum's nodes and channels to them. Used on the event loop's thread only.

    Fetches have channels of their own: a parked fetch would delay a vote behind it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        voters: Callable[[], Voters],
        link_factory: ChannelFactory = NodeChannel,
    ) -> None:
        self.own: tuple[VoterEndpoint, ...] = ()
        self._node_id = config.node_id
        self._voters = voters
        self._new_link = link_factory
        self._configured = {
            voter.node_id: Address(voter.host, voter.port)
            for voter in config.controller_quorum_voters
        }
        self._bootstrap = [
            address
            for text in config.controller_quorum_bootstrap_servers
            for address in parse_addresses(text)
        ]
        self._bootstrap_turn = 0
        self._learned: dict[int, Address] = {}
        self._links: dict[tuple[int, str], NodeChannel] = {}
        self._listener_name = next(
            iter(config.controller_listener_names or (config.listeners[0].name,))
        )

    def set_own(self, endpoints: Iterable[VoterEndpoint]) -> None:
        """Set the endpoints of this node; its address in the configuration comes first."""
        known = self._configured.get(self._node_id)
        if known is not None:
            self.own = (VoterEndpoint(self._listener_name, known.host, known.port),)
        else:
            self.own = tuple(endpoints)

    def configured_voters(self, config: BrokerConfig, directory_id: bytes) -> Voters:
        """The voters of a log without a voters record: those configured, or this node alone."""
        if config.controller_quorum_voters:
            return tuple(
                Voter(node_id, endpoints=(VoterEndpoint(self._listener_name, *address),))
                for node_id, address in sorted(self._configured.items())
            )
        if config.is_controller and not self._bootstrap:
            return (Voter(self._node_id, directory_id, self.own),)
        return ()

    def voter(self, node_id: int) -> Voter:
        """The voter with an id; without directory and endpoints if it is not known."""
        for voter in self._voters():
            if voter.node_id == node_id:
                return voter
        return Voter(node_id)

    @property
    def has_bootstrap(self) -> bool:
        return bool(self._bootstrap)

    def with_own_endpoints(self, voter: Voter) -> Voter:
        """The voter with its present endpoints, if it is this node, else as it is.

        For a voters record, by which other nodes find it: endpoints in the log may be outdated.
        """
        if voter.node_id == self._node_id and self.own:
            return voter._replace(endpoints=self.own)
        return voter

    def address_of(self, node_id: int) -> Address | None:
        """The address of a node; None if it is not known."""
        if node_id == BOOTSTRAP:
            if not self._bootstrap:
                return None
            return self._bootstrap[self._bootstrap_turn % len(self._bootstrap)]
        if node_id == self._node_id:
            return self._address_in(self.own)
        return (
            self._configured.get(node_id)
            or self._learned.get(node_id)
            or self._address_in(self.voter(node_id).endpoints)
        )

    def _address_in(self, endpoints: tuple[VoterEndpoint, ...]) -> Address | None:
        named = [
            endpoint for endpoint in endpoints if endpoint.name == self._listener_name
        ] or endpoints
        return Address(named[0].host, named[0].port) if named else None

    def learn(self, node_id: int, address: Address | None) -> None:
        """Remember the address of a leader, as a response has it."""
        if address is not None and node_id != NOBODY:
            self._learned[node_id] = address

    def learn_endpoints(self, node_id: int, endpoints: Iterable[VoterEndpoint]) -> None:
        """Remember the address of a node that sent its endpoints."""
        self.learn(node_id, self._address_in(tuple(endpoints)))

    def note_failure(self, node_id: int) -> None:
        """Switch to the next bootstrap server, if the node that did not answer is one of them."""
        if node_id == BOOTSTRAP:
            self._bootstrap_turn += 1

    def link(self, node_id: int, purpose: str) -> NodeChannel:
        """The channel to a node for one purpose."""
        key = (node_id, purpose)
        if key not in self._links:
            client_id = f"node-{self._node_id}-{purpose}"
            self._links[key] = self._new_link(lambda: self.address_of(node_id), client_id)
        return self._links[key]

    def close(self) -> None:
        for link in self._links.values():
            link.close()
