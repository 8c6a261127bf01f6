"""What deploy/ has, checked as far as that can be done without systemd or containers."""

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from headrace.cli.main import cli
from headrace.config import BrokerConfig, broker_config, read_properties

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROPERTIES = "/etc/headrace/server.properties"
DATA = "/var/lib/headrace"

# Of systemd.unit(5), systemd.service(5), systemd.exec(5), systemd.kill(5).
UNIT_KEYS = {
    "Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        "Type",
        "User",
        "Group",
        "ExecStart",
        "KillSignal",
        "TimeoutStopSec",
        "Restart",
        "RestartMaxDelaySec",
        "RestartSec",
        "RestartSteps",
        "LimitNOFILE",
        "StateDirectory",
        "StateDirectoryMode",
        "UMask",
        "NoNewPrivileges",
        "CapabilityBoundingSet",
        "LockPersonality",
        "PrivateDevices",
        "PrivateTmp",
        "ProtectClock",
        "ProtectControlGroups",
        "ProtectHome",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectSystem",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "SystemCallArchitectures",
    },
    "Install": {"WantedBy"},
}
INSTRUCTIONS = {
    "FROM",
    "RUN",
    "WORKDIR",
    "COPY",
    "USER",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "ENTRYPOINT",
    "CMD",
}
SERVICE_KEYS = {
    "image",
    "build",
    "restart",
    "stop_grace_period",
    "ulimits",
    "healthcheck",
    "hostname",
    "command",
    "ports",
    "volumes",
}


def config_of(command: list[str]) -> BrokerConfig:
    """The config of a node that is started with this command, without the name of the program."""
    subcommand = cli.get_command(click.Context(cli), command[0])
    assert subcommand is not None
    assert command[:3] == ["broker", "--config", PROPERTIES]
    # The path is one of the host's, so what is there is taken from here.
    local = [
        str(DEPLOY / "server.properties") if entry == PROPERTIES else entry for entry in command[1:]
    ]
    parameters = subcommand.make_context("broker", local).params
    properties = read_properties(Path(parameters["path"]).read_text())
    return broker_config({**properties, **dict(parameters["settings"])})


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, one pair of instruction and arguments for each."""
    text = (DEPLOY / "Dockerfile").read_text()
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, arguments) for name, _, arguments in found]


def compose() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(document, dict)
    return document


def test_the_properties_are_those_of_a_node_of_three() -> None:
    config = config_of(["broker", "--config", PROPERTIES])
    assert config.node_id in {voter.node_id for voter in config.controller_quorum_voters}
    assert len(config.controller_quorum_voters) == 3
    assert (config.default_replication_factor, config.min_insync_replicas) == (3, 2)
    assert config.offsets_topic_replication_factor == 3
    assert config.data_directories == (DATA,)


def test_the_unit_has_only_keys_that_systemd_knows() -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "headrace.service").read_text())
    assert unit.sections() == list(UNIT_KEYS)
    for section, known in UNIT_KEYS.items():
        assert set(unit[section]) <= known
    service = unit["Service"]
    program, *command = shlex.split(service["ExecStart"])
    assert Path(program).name == "headrace"
    config_of(command)
    assert f"/var/lib/{service['StateDirectory']}" == DATA


def test_the_unit_starts_a_broker_that_failed_again_later_each_time_and_never_gives_up() -> None:
    unit = ConfigParser(interpolation=None)
    unit.read_string((DEPLOY / "headrace.service").read_text())
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert (service["RestartSec"], service["RestartMaxDelaySec"]) == ("1s", "30s")
    assert int(service["RestartSteps"]) > 1


def test_the_image_is_made_of_what_is_there() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    for name, arguments in found:
        if name == "COPY" and not arguments.startswith("--from="):
            *sources, _ = arguments.split()
            assert [source for source in sources if not (ROOT / source).exists()] == []
    last = dict(found)
    assert json.loads(last["ENTRYPOINT"]) == ["headrace"]
    config = config_of(json.loads(last["CMD"]))
    assert last["VOLUME"] == DATA
    assert last["EXPOSE"].split() == sorted(str(listener.port) for listener in config.listeners)
    assert last["USER"] == "headrace"


def test_the_containers_are_one_cluster() -> None:
    document = compose()
    assert set(document) == {"name", "x-node", "services", "volumes"}
    configs = {}
    for host, service in document["services"].items():
        assert set(service) <= SERVICE_KEYS
        assert service["hostname"] == host
        configs[host] = config_of(shlex.split(service["command"]))
    voters = {config.controller_quorum_voters for config in configs.values()}
    [everybody] = voters
    for host, config in configs.items():
        addresses = {entry.name: entry for entry in config.advertised_listeners or ()}
        inside, outside = addresses["INTERNAL"], addresses["PLAINTEXT"]
        assert inside.host == host
        assert (config.node_id, inside.host, inside.port) in everybody
        [published] = document["services"][host]["ports"]
        assert published == f"{outside.port}:{config.listeners[1].port}"
        [volume] = document["services"][host]["volumes"]
        name, _, place = volume.partition(":")
        assert (place, name in document["volumes"]) == (DATA, True)
    for values in (
        [config.node_id for config in configs.values()],
        [config.advertised_listeners for config in configs.values()],
        [tuple(value["volumes"]) for value in document["services"].values()],
    ):
        assert len(set(values)) == 3


def test_the_health_check_is_a_command_there_is() -> None:
    kind, program, *command = compose()["x-node"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "headrace")
    context = click.Context(cli)
    group = cli.get_command(context, command[0])
    assert isinstance(group, click.Group)
    subcommand = group.get_command(context, command[1])
    assert subcommand is not None
    subcommand.make_context(command[1], command[2:])


FILES = [str(path.relative_to(DEPLOY)) for path in sorted(DEPLOY.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_told_of(name: str) -> None:
    assert name == "README.md" or f"`{name}`" in (DEPLOY / "README.md").read_text()
