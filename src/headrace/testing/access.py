"""Access of a test's clients to its brokers: in plain text, or by TLS and a login.

Certificates are made once in a process, and all its secured brokers share them.
"""

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from headrace.cli.secured_cluster import (
    MECHANISM,
    NODE_USER,
    PROTOCOL,
    USER,
    SecuredCluster,
)
from headrace.client.options import ADMIN_OPTIONS, from_properties
from headrace.client.security_options import SecurityOptions
from headrace.net.client_connection import PLAINTEXT, ClientSecurity
from headrace.options import options_of
from headrace.testing.ports import HOST


class PlainAccess:
    """Access in plain text, to brokers at which everybody may do everything."""

    listener = "PLAINTEXT"
    """The name of the brokers' listener."""

    def broker_properties(self) -> dict[str, str]:
        """The settings of brokers that let clients in like this."""
        return {}

    def client_config(self, bootstrap: str) -> dict[str, str]:
        """The properties of a client, in the names of librdkafka."""
        return {"bootstrap.servers": bootstrap}

    def client_options(self, bootstrap: str) -> dict[str, Any]:
        """The keyword arguments of a client of headrace."""
        return dict(from_properties(self.client_config(bootstrap), "admin"))

    def client_security(self) -> ClientSecurity:
        """TLS and login of a connection."""
        return PLAINTEXT


class SecuredAccess(PlainAccess):
    """Access by TLS and a login, as a user who may do everything."""

    listener = PROTOCOL

    def broker_properties(self) -> dict[str, str]:
        return _secured_cluster().broker_properties()

    def client_config(self, bootstrap: str) -> dict[str, str]:
        cluster = _secured_cluster()
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": PROTOCOL,
            "ssl.ca.location": str(cluster.trusted),
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": cluster.password,
        }

    def client_security(self) -> ClientSecurity:
        return _client_security()


def access_to_brokers(*, secured: bool) -> PlainAccess:
    """The access to the brokers of a test."""
    return SecuredAccess() if secured else PlainAccess()


@cache
def _client_security() -> ClientSecurity:
    values, _ = ADMIN_OPTIONS.check(dict(SecuredAccess().client_options(f"{HOST}:1")))
    security = {name: values[name] for name in options_of(SecurityOptions)}
    return SecurityOptions(**security).client_security()


@cache
def _secured_cluster() -> SecuredCluster:
    directory = Path(tempfile.mkdtemp(prefix="headrace-security-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = SecuredCluster.prepare(directory, ())
    # A data directory that a test keeps is of use to the next run, which has other certificates.
    return replace(made, password=f"{USER}-of-tests", node_password=f"{NODE_USER}-of-tests")
