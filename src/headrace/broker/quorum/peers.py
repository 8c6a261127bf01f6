"""The other nodes of the quorum: where each is, and the links to it.

Where a node is, is taken from the configuration, then from what a leader said, then from the log.
"""

from collections.abc import Callable, Iterable

from headrace.broker.cluster.channels import Link
from headrace.config import BrokerConfig
from headrace.net.addresses import Address, parse_addresses
from headrace.raft.messages import BOOTSTRAP, NOBODY, Endpoint, Voter, Voters

LinkFactory = Callable[[Callable[[], Address | None], str], Link]


class Peers:
    """Addresses and links. Used on the event loop's thread only.

    A link for fetches of its own: a parked fetch would hold up a vote behind it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        voters: Callable[[], Voters],
        link_factory: LinkFactory = Link,
    ) -> None:
        self.own: tuple[Endpoint, ...] = ()
        self._node_id = config.node_id
        self._voters = voters
        self._new_link = link_factory
        self._configured = {
            one.node_id: Address(one.host, one.port) for one in config.controller_quorum_voters
        }
        self._bootstrap = [
            address
            for text in config.controller_quorum_bootstrap_servers
            for address in parse_addresses(text)
        ]
        self._bootstrap_turn = 0
        self._learned: dict[int, Address] = {}
        self._links: dict[tuple[int, str], Link] = {}
        self._listener_name = next(
            iter(config.controller_listener_names or (config.listeners[0].name,))
        )

    def set_own(self, endpoints: Iterable[Endpoint]) -> None:
        """Say where this node is reached; what the configuration says of it comes first."""
        known = self._configured.get(self._node_id)
        if known is not None:
            self.own = (Endpoint(self._listener_name, known.host, known.port),)
        else:
            self.own = tuple(endpoints)

    def configured_voters(self, config: BrokerConfig, directory_id: bytes) -> Voters:
        """The voters without any record of them: those named, or this node alone."""
        if config.controller_quorum_voters:
            return tuple(
                Voter(node_id, endpoints=(Endpoint(self._listener_name, *address),))
                for node_id, address in sorted(self._configured.items())
            )
        if config.is_controller and not self._bootstrap:
            return (Voter(self._node_id, directory_id, self.own),)
        return ()

    def voter(self, node_id: int) -> Voter:
        """What is known of a voter."""
        for voter in self._voters():
            if voter.node_id == node_id:
                return voter
        return Voter(node_id)

    @property
    def has_bootstrap(self) -> bool:
        return bool(self._bootstrap)

    def completed(self, voter: Voter) -> Voter:
        """A voter with its addresses, for a record that others must find it by.

        What this node knows of itself is newer than what the log has.
        """
        if voter.node_id == self._node_id and self.own:
            return voter._replace(endpoints=self.own)
        return voter

    def address_of(self, node_id: int) -> Address | None:
        """Where a node is reached, if that is known."""
        if node_id == BOOTSTRAP:
            if not self._bootstrap:
                return None
            return self._bootstrap[self._bootstrap_turn % len(self._bootstrap)]
        if node_id == self._node_id:
            return self._first(self.own)
        return (
            self._configured.get(node_id)
            or self._learned.get(node_id)
            or self._first(self.voter(node_id).endpoints)
        )

    def _first(self, endpoints: tuple[Endpoint, ...]) -> Address | None:
        named = [one for one in endpoints if one.name == self._listener_name] or endpoints
        return Address(named[0].host, named[0].port) if named else None

    def learn(self, node_id: int, address: Address | None) -> None:
        """Note where a leader says that it is."""
        if address is not None and node_id != NOBODY:
            self._learned[node_id] = address

    def told_endpoints(self, node_id: int, endpoints: Iterable[Endpoint]) -> None:
        """Note where a node itself says that it is."""
        self.learn(node_id, self._first(tuple(endpoints)))

    def failed(self, node_id: int) -> None:
        """Note that a node did not answer: the next bootstrap server may."""
        if node_id == BOOTSTRAP:
            self._bootstrap_turn += 1

    def link(self, node_id: int, purpose: str) -> Link:
        """The link to a node for one purpose."""
        key = (node_id, purpose)
        if key not in self._links:
            client_id = f"node-{self._node_id}-{purpose}"
            self._links[key] = self._new_link(lambda: self.address_of(node_id), client_id)
        return self._links[key]

    def close(self) -> None:
        for link in self._links.values():
            link.close()
