"""`headrace certs`: a certificate authority, and certificates, for development and tests."""

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from headrace.cli.options import Command, examples

_DEFAULT_DIRECTORY = "headrace-certs"
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.group(short_help="Make certificates for development and tests.")
def certs() -> None:
    """Make a certificate authority, and certificates of brokers and clients.

    They are for development and tests: the key of the authority lies in a file, and nothing can be
    revoked.
    """


def _days_option(default: int, help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "--days",
        type=click.IntRange(min=1, max=36_500),
        default=default,
        show_default=True,
        help=help_text,
    )


_directory_option = click.option(
    "--dir",
    "directory",
    type=_DIRECTORY,
    default=_DEFAULT_DIRECTORY,
    show_default=True,
    help="The directory of the authority and its certificates.",
)


@certs.command(
    epilog=examples("headrace certs ca", "headrace certs ca --dir /etc/headrace/certs --days 365")
)
@_directory_option
@click.option("--name", default="headrace CA", show_default=True, help="The authority's name.")
@_days_option(3650, "How long its certificate is valid.")
def ca(directory: Path, name: str, days: int) -> None:
    """Make a certificate authority, which signs the certificates of brokers and clients."""
    # The library takes long to import, and all other commands do without it.
    from headrace.cli.certificate_authority import (  # noqa: PLC0415
        CertificateAuthority,
        Validity,
    )

    made = CertificateAuthority.create(directory, name, Validity.of_days(days))
    click.echo(f"wrote {made.key_path} and {made.certificate_path}, valid for {days} days")
    click.echo("whoever reads the key can pretend to be any broker and any client; keep it safe")
    _print_settings("brokers and clients", {"ssl.truststore.location": made.certificate_path})


@certs.command(
    epilog=examples(
        "headrace certs broker broker-1 --host kafka-1.example.org --host 10.0.0.5",
        "headrace certs broker dev",
    )
)
@click.argument("name")
@_directory_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A host name or address that clients or brokers connect to; may be repeated. Without it"
    " localhost, 127.0.0.1 and ::1.",
)
@_days_option(825, "How long it is valid.")
def broker(name: str, directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make the key and the certificate of a broker, for the hosts it is reached at."""
    from headrace.cli.certificate_authority import (  # noqa: PLC0415  # As above.
        LOOPBACK_HOSTS,
        CertificateAuthority,
        Validity,
    )

    authority = CertificateAuthority.open(directory)
    hosts = hosts or LOOPBACK_HOSTS
    path = authority.issue_broker(name, hosts, Validity.of_days(days))
    click.echo(f"wrote {path} for {', '.join(hosts)}, valid for {days} days")
    _print_settings(
        "the broker",
        {
            "listeners": f"SSL://{hosts[0]}:9093",
            "ssl.keystore.location": path,
            "ssl.truststore.location": authority.certificate_path,
        },
    )


@certs.command(epilog=examples("headrace certs client alice"))
@click.argument("name")
@_directory_option
@_days_option(825, "How long it is valid.")
def client(name: str, directory: Path, days: int) -> None:
    """Make the key and the certificate of a client, whose principal is User:CN=NAME."""
    from headrace.cli.certificate_authority import (  # noqa: PLC0415  # As above.
        CertificateAuthority,
        Validity,
    )

    authority = CertificateAuthority.open(directory)
    path = authority.issue_client(name, Validity.of_days(days))
    click.echo(f"wrote {path}, valid for {days} days; brokers call the client User:CN={name}")
    _print_settings(
        "the client",
        {
            "security.protocol": "SSL",
            "ssl.keystore.location": path,
            "ssl.truststore.location": authority.certificate_path,
        },
    )


def _print_settings(whose: str, settings: Mapping[str, object]) -> None:
    """The settings that use the files, as lines of a properties file."""
    click.echo(f"# settings of {whose}:")
    if "ssl.keystore.location" in settings:
        settings = {**settings, "ssl.keystore.type": "PEM"}
    for name, value in {**settings, "ssl.truststore.type": "PEM"}.items():
        click.echo(f"{name}={value.absolute() if isinstance(value, Path) else value}")
