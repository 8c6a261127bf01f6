"""A cluster to talk to, from the options every such command has."""

from headrace.client.addresses import parse_addresses
from headrace.client.cluster import Cluster
from headrace.errors import ConfigError


def open_cluster(bootstrap: str, timeout_s: float) -> Cluster:
    """A client of the cluster `--bootstrap-server` names. Connects when first asked something."""
    try:
        addresses = parse_addresses(bootstrap)
    except ConfigError as error:
        raise ConfigError(f"--bootstrap-server: {error}") from None
    return Cluster(addresses, client_id="headrace-cli", timeout_s=timeout_s)
