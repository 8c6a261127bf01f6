"""Where a broker is reached by whom: each listener has an address of its own."""

from headrace.metadata.image import BrokerImage, Endpoint


def endpoint_of(broker: BrokerImage, listener: str | None) -> Endpoint | None:
    """The address of a broker for those who use a listener; its first one if it has not that."""
    for endpoint in broker.endpoints:
        if endpoint.name == listener:
            return endpoint
    return broker.endpoints[0] if broker.endpoints else None
