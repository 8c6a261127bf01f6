"""`headrace quorum`: the controllers that keep the cluster's metadata."""

from collections.abc import Mapping
from typing import Any

import click

from headrace.cli.clients import now_ms, open_admin
from headrace.cli.options import client_options, confirm, examples
from headrace.cli.output import print_json, print_table
from headrace.client.admin.admin import Admin
from headrace.client.admin.cluster import QuorumDescription, QuorumReplica
from headrace.errors import HeadraceError
from headrace.net.addresses import Address
from headrace.types import uuid_text


class NoSuchReplica(HeadraceError):
    """A node does not have the role in the quorum that a command needs."""


@click.group(short_help="Show and change the controllers.")
def quorum() -> None:
    """Show and change the controllers, which keep the metadata of the cluster."""


@quorum.command(epilog=examples("headrace quorum describe", "headrace quorum describe --json"))
@client_options
def describe(bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Show the leader, voters and observers of the metadata log, and their progress."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_quorum()
    now = now_ms()
    if as_json:
        print_json(_document(found))
        return
    click.echo(
        f"Leader {found.leader_id}, epoch {found.leader_epoch},"
        f" high watermark {found.high_watermark}"
    )
    end = max((voter.log_end_offset for voter in found.voters), default=0)
    print_table(
        ["NODE", "ROLE", "LOG END", "LAG", "LAST FETCH", "CAUGHT UP", "DIRECTORY"],
        [
            (
                replica.node_id,
                role,
                replica.log_end_offset,
                max(end - replica.log_end_offset, 0),
                _ago(now, replica.last_fetch_ms, found.leader_id == replica.node_id),
                _ago(now, replica.last_caught_up_ms, found.leader_id == replica.node_id),
                uuid_text(replica.directory_id),
            )
            for role, replica in _roles(found)
        ],
    )


def _roles(found: QuorumDescription) -> list[tuple[str, QuorumReplica]]:
    voters = [
        ("leader" if voter.node_id == found.leader_id else "voter", voter) for voter in found.voters
    ]
    return voters + [("observer", observer) for observer in found.observers]


def _ago(now: int, time_ms: int | None, is_leader: bool) -> str | None:
    """The text for the time since a replica's last fetch; empty for the leader."""
    if is_leader or time_ms is None:
        return None
    return f"{max(now - time_ms, 0) / 1000:.1f} s ago"


def _document(found: QuorumDescription) -> dict[str, Any]:
    return {
        "leader": found.leader_id if found.leader_id >= 0 else None,
        "epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "nodes": [
            {
                "id": replica.node_id,
                "role": role,
                "directory_id": uuid_text(replica.directory_id),
                "log_end_offset": replica.log_end_offset,
                "last_fetch_ms": replica.last_fetch_ms,
                "last_caught_up_ms": replica.last_caught_up_ms,
                "endpoints": {
                    name: str(address)
                    for name, address in found.endpoints.get(replica.node_id, {}).items()
                },
            }
            for role, replica in _roles(found)
        ],
    }


@quorum.command(
    epilog=examples(
        "headrace quorum add 4",
        "headrace quorum add 4 --endpoint CONTROLLER=10.0.0.4:9093",
    )
)
@click.argument("node", type=click.IntRange(min=0))
@click.option(
    "--endpoint",
    metavar="[NAME=]HOST:PORT",
    help="Where controllers reach it; without it where clients do, if other voters are reached so.",
)
@client_options
def add(node: int, endpoint: str | None, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Make NODE, an observer of the metadata log, a voter.

    Add one node at a time. Prefer odd numbers of voters: of three, one may fail; of five, two.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_quorum()
        observer = _one_of(found.observers, node)
        if observer is None:
            if _one_of(found.voters, node) is not None:
                raise NoSuchReplica(
                    f"node {node} is a voter already; see `headrace quorum describe`"
                )
            raise NoSuchReplica(
                f"node {node} does not follow the metadata log; first start it as a controller"
                " (process.roles) that knows the addresses of the voters"
            )
        endpoints = _endpoints(admin, found, node, endpoint)
        admin.add_voter(node, observer.directory_id, endpoints)
    if as_json:
        print_json({"node": node, "voter": True})
    else:
        click.echo(f"node {node} is a voter now")


def _one_of(replicas: tuple[QuorumReplica, ...], node: int) -> QuorumReplica | None:
    return next((replica for replica in replicas if replica.node_id == node), None)


def _endpoints(
    admin: Admin, found: QuorumDescription, node: int, given: str | None
) -> Mapping[str, Address | str]:
    """The address of the new voter: the given one, or its address as a broker."""
    known = [item for listeners in found.endpoints.values() for item in listeners.items()]
    name = known[0][0] if known else "CONTROLLER"
    if given is not None:
        before, equals, address = given.partition("=")
        return {before: address} if equals else {name: given}
    brokers = {broker.node_id: broker.address for broker in admin.describe_cluster().brokers}
    reached_alike = known and all(
        brokers.get(voter) in listeners.values() for voter, listeners in found.endpoints.items()
    )
    if node not in brokers or not reached_alike:
        raise NoSuchReplica(
            f"nobody knows where controllers reach node {node}; say it with --endpoint HOST:PORT"
        )
    return {name: brokers[node]}


@quorum.command(epilog=examples("headrace quorum remove 3", "headrace quorum remove 3 --yes"))
@click.argument("node", type=click.IntRange(min=0))
@click.option("--yes", is_flag=True, help="Do not ask before removing.")
@client_options
def remove(node: int, yes: bool, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Remove NODE from the voters. It need not be running.

    The last voter cannot be removed. A leader hands over its leadership first.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_quorum()
        voter = _one_of(found.voters, node)
        if voter is None:
            raise NoSuchReplica(f"node {node} is no voter; see `headrace quorum describe`")
        if len(found.voters) == 1:
            raise NoSuchReplica(f"node {node} is the only voter; add another one first")
        if not yes:
            confirm(f"Let node {node} vote no longer?", "Removing")
        admin.remove_voter(node, voter.directory_id)
    if as_json:
        print_json({"node": node, "voter": False})
    else:
        click.echo(f"node {node} is no voter any more")
