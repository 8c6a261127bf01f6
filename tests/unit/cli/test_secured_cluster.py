"""Certificates, users and settings of a secured cluster on one machine."""

from pathlib import Path

import pytest

from headrace.cli.secured_cluster import USER, SecuredCluster
from headrace.config import broker_config, read_properties
from headrace.errors import ConfigError


def test_a_secure_cluster_starts_again_with_its_own_passwords(tmp_path: Path) -> None:
    first = SecuredCluster.prepare(tmp_path, ["a.example"])
    second = SecuredCluster.prepare(tmp_path, ["b.example"])
    assert first.password == second.password != second.node_password
    assert first.password not in repr(first)
    (tmp_path / "passwords.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no passwords that can be read"):
        SecuredCluster.prepare(tmp_path, [])


def test_brokers_take_the_settings_and_clients_the_file(tmp_path: Path) -> None:
    cluster = SecuredCluster.prepare(tmp_path, [])
    config = broker_config({"listeners": "SASL_SSL://h:1", **cluster.broker_properties()})
    assert config.protocol_of(config.inter_broker_listener).name == "SASL_SSL"
    file = cluster.write_client_file(tmp_path, "h:1")
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_properties(file.read_text()) == cluster.client_properties("h:1")
    assert f'username="{USER}"' in cluster.client_properties("h:1")["sasl.jaas.config"]
