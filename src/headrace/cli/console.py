"""`headrace console`: the cluster in a browser, served by a process of its own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace import __version__
from headrace.cli.connection_settings import connection_properties
from headrace.cli.options import bootstrap_option, examples, pipelines_option
from headrace.clock import SystemClock
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.console.app import ConsoleSettings
    from headrace.console.server import ServerSettings

DEFAULT_PORT = 9080
PIPELINES_DIRECTORY = "headrace-pipelines"
EXTRA = "headrace[console]"
_PACKAGES = ("authlib", "jinja2", "starlette", "uvicorn")


@click.command(
    short_help="Show a cluster in a browser.",
    epilog=examples(
        "headrace console",
        "headrace console -b broker1:9092,broker2:9092 --pipeline orders.yaml",
        "headrace console --client-config client.properties",
        "headrace console --client-config client.properties --oidc-issuer https://login.example.com"
        " --oidc-client-id headrace-console",
        "headrace console --listen 0.0.0.0:9443 --ssl-certfile c.pem --ssl-keyfile k.pem",
    ),
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    help="Where to serve it; port 0 takes any free port.",
)
@click.option(
    "--no-sign-in",
    is_flag=True,
    help="Act for everybody as the user of the connection's properties. Without it viewers sign in"
    " where the cluster has SASL.",
)
@click.option(
    "--ssl-certfile",
    "certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The certificate of the console, PEM: serve it over HTTPS.",
)
@click.option(
    "--ssl-keyfile",
    "key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The private key of that certificate, PEM.",
)
@click.option(
    "--ssl-keyfile-password",
    "key_password",
    envvar="HEADRACE_CONSOLE_KEY_PASSWORD",
    metavar="PASSWORD",
    help="The password of an encrypted key, better given as HEADRACE_CONSOLE_KEY_PASSWORD.",
)
@click.option(
    "--host-name",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers reach it; may be repeated. Others are refused, except addresses,"
    " localhost and the host of --listen.",
)
@click.option(
    "--proxy",
    metavar="ADDRESS",
    help="The address of a proxy in front that speaks TLS, whose X-Forwarded headers are believed.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without a sign-in or without TLS.",
)
@click.option(
    "--oidc-issuer",
    metavar="URL",
    help="Viewers sign in at this OpenID provider, and log in to the brokers with its tokens.",
)
@click.option("--oidc-client-id", metavar="ID", help="The client that the console is there.")
@click.option(
    "--oidc-client-secret-file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="The secret of that client; without it the console is a public client.",
)
@click.option(
    "--oidc-scope",
    "oidc_scopes",
    multiple=True,
    metavar="SCOPE",
    help="A scope to ask for beside `openid`, such as offline_access; may be repeated.",
)
@click.option(
    "--oidc-token",
    type=click.Choice(["access", "id"]),
    default="access",
    show_default=True,
    help="The token that the brokers get.",
)
@click.option(
    "--oidc-ca-file",
    type=click.Path(dir_okay=False, exists=True),
    metavar="FILE",
    help="Certificates to check the provider's with, PEM, instead of the known ones.",
)
@pipelines_option
@click.option(
    "--pipelines-dir",
    "directories",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="DIR",
    help="A directory of checkpoints, of one pipeline or of many; may be repeated.",
)
@bootstrap_option
def console(
    listen: str,
    no_sign_in: bool,
    certificate: Path | None,
    key: Path | None,
    key_password: str | None,
    hosts: tuple[str, ...],
    proxy: str | None,
    insecure: bool,
    oidc_issuer: str | None,
    oidc_client_id: str | None,
    oidc_client_secret_file: Path | None,
    oidc_scopes: tuple[str, ...],
    oidc_token: str,
    oidc_ca_file: str | None,
    pipelines: tuple[Path, ...],
    directories: tuple[Path, ...],
    bootstrap: str,
) -> None:
    """Serve pages about a cluster, until Ctrl-C: its health, brokers, topics, groups, users.

    It is a client like any other, and shows Apache Kafka too. Where the cluster has SASL, viewers
    sign in as its users and may do what the ACLs allow these.
    """
    if not is_installed():
        raise ConfigError(
            "the console needs packages that are not installed",
            advice=f"install them with `pip install '{EXTRA}'`",
        )
    from headrace.console.app import ConsoleSettings  # noqa: PLC0415
    from headrace.console.cluster_access import ClusterConnection  # noqa: PLC0415
    from headrace.console.oidc_settings import OidcSettings  # noqa: PLC0415
    from headrace.console.pipeline_runs import PipelineRuns  # noqa: PLC0415
    from headrace.console.server import ServerSettings  # noqa: PLC0415

    host, port = _address(listen)
    connection = ClusterConnection(bootstrap, dict(connection_properties()))
    declared = [_declared(file) for file in pipelines]
    runs = None
    if declared or directories:
        runs = PipelineRuns(declared, directories, SystemClock())
    oidc = None
    if oidc_issuer or oidc_client_id:
        if not (oidc_issuer and oidc_client_id):
            raise click.UsageError("--oidc-issuer and --oidc-client-id need each other.")
        if not connection.uses_sasl or no_sign_in:
            raise click.UsageError("--oidc-issuer needs brokers with SASL, and a sign-in.")
        secret = oidc_client_secret_file
        oidc = OidcSettings(
            oidc_issuer,
            oidc_client_id,
            secret.read_text().strip() if secret else None,
            ("openid", *(scope for scope in oidc_scopes if scope != "openid")),
            "id_token" if oidc_token == "id" else "access_token",
            oidc_ca_file,
        )
    settings = ConsoleSettings(
        connection,
        signs_in=connection.uses_sasl and not no_sign_in,
        hosts=(*hosts, host),
        pipelines=runs,
        oidc=oidc,
    )
    server = ServerSettings(
        host, port, certificate, key, key_password, proxy, is_insecure_allowed=insecure
    )
    run(settings, server)


def run(settings: ConsoleSettings, server: ServerSettings) -> None:
    """Check the settings, serve, and print where."""
    from headrace.console.server import bind, is_loopback, serve  # noqa: PLC0415

    server.check(signs_in=settings.signs_in)
    # Wrong properties are an error now, not of the first viewer.
    if settings.oidc is None or settings.connection.takes_passwords:
        settings.connection.arguments("admin", *(("", "") if settings.signs_in else ()))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if server.is_insecure_allowed and not is_loopback(server.host):
        lacking = " and ".join(
            words
            for words, is_lacking in (
                ("a sign-in", not settings.signs_in),
                ("TLS", not (server.uses_tls or server.proxy)),
            )
            if is_lacking
        )
        if lacking:
            click.echo(
                f"headrace: the console listens on {server.host} without {lacking}: whoever"
                " reaches it can read and change the cluster, or listen to those who do",
                err=True,
            )
    with bind(server) as listening:
        serve(
            settings,
            server,
            listening,
            lambda url: click.echo(f"headrace {__version__} console at {url}"),
        )


def run_beside(
    bootstrap: str, properties: Mapping[str, str], listening: socket.socket, *, signs_in: bool
) -> None:
    """Serve a console at a socket of this machine, for `headrace up`, which has said where."""
    from headrace.console.app import ConsoleSettings  # noqa: PLC0415
    from headrace.console.cluster_access import ClusterConnection  # noqa: PLC0415
    from headrace.console.pipeline_runs import PipelineRuns  # noqa: PLC0415
    from headrace.console.server import ServerSettings, serve  # noqa: PLC0415

    logging.basicConfig(level=logging.ERROR, format="console | %(levelname)s %(name)s: %(message)s")
    host, port = listening.getsockname()[:2]
    settings = ConsoleSettings(
        ClusterConnection(bootstrap, properties),
        signs_in=signs_in,
        # Where `headrace pipeline run` keeps checkpoints unless a pipeline says otherwise.
        pipelines=PipelineRuns((), (Path(PIPELINES_DIRECTORY),), SystemClock()),
    )
    serve(settings, ServerSettings(host, port), listening, lambda url: None)


def is_installed() -> bool:
    """Whether the packages of the console are installed."""
    from importlib.util import find_spec  # noqa: PLC0415  # Slow, and only needed here.

    return all(find_spec(name) is not None for name in _PACKAGES)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {text!r} is not of the form HOST:PORT.")
    return host.strip("[]"), int(port)


def _declared(file: Path) -> Path:
    """The directory of the state of a pipeline's runs."""
    # PyYAML takes long to import, and is only needed for pipelines.
    from headrace.cli.pipeline import load_pipeline  # noqa: PLC0415
    from headrace.pipelines.locations import notes_directory  # noqa: PLC0415

    return notes_directory(load_pipeline(file))
