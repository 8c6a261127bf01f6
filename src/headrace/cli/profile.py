"""`headrace profile`: named sets of properties by which commands connect to clusters."""

import os
from pathlib import Path

import click

from headrace.cli.connection_settings import (
    PROFILE_VARIABLE,
    current_profile,
    current_profile_file,
    profile_names,
    read_profile,
)
from headrace.cli.options import (
    asked,
    confirm_deletion,
    examples,
    json_option,
    key_value,
    unique,
    yes_option,
)
from headrace.cli.output import print_json
from headrace.client.options import check_properties, is_sensitive
from headrace.client.property_files import existing_profile, profile_directory, profile_path
from headrace.config.properties import properties_text, read_properties
from headrace.errors import ConfigError

_HIDDEN = "******"


@click.group(
    epilog=examples(
        "headrace profile add prod bootstrap.servers=kafka:9093 security.protocol=SASL_SSL \\",
        "    sasl.mechanism=SCRAM-SHA-512 sasl.username=alice --ask sasl.password",
        "headrace profile use prod",
        "headrace topics list",
    )
)
def profile() -> None:
    """Keep how to connect to clusters, under names.

    A profile has properties under the names of Kafka's clients. Every command that asks a broker
    takes --profile NAME; without it HEADRACE_PROFILE, or the profile chosen with `use`.
    """


@profile.command(
    epilog=examples(
        "headrace profile add local bootstrap.servers=127.0.0.1:9092",
        "headrace profile add prod --from client.properties",
        "headrace profile add prod 'sasl.password=${env:KAFKA_PASSWORD}' --replace",
    )
)
@click.argument("name")
@click.argument("properties", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--from", "source", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="Take the properties of FILE first.",
)  # fmt: skip
@click.option(
    "--ask", multiple=True, metavar="KEY",
    help="Ask for the value of KEY at a prompt, or read a line of standard input.",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace a profile of that name.")
def add(
    name: str, properties: tuple[str, ...], source: str | None, ask: tuple[str, ...], replace: bool
) -> None:
    """Add the profile NAME.

    Secrets are no arguments, which other users of the machine could see: give them with --ask, in a
    file, or as a reference such as ${env:NAME} or ${file:PATH}, which is resolved at each use.
    """
    path = profile_path(name)
    if path.exists() and not replace:
        raise ConfigError(f"there is a profile {name!r} already; pass --replace to replace it")
    given = unique(tuple(key_value(text) for text in properties), "the command")
    for key, value in given.items():
        if is_sensitive(key) and not value.startswith("${"):
            raise click.UsageError(
                f"{key} is a secret; give it with --ask {key}, in a file with --from, or as a"
                " reference such as ${env:NAME}."
            )
    values = {} if source is None else dict(read_properties(Path(source).read_text("utf-8")))
    values |= given
    for key in ask:
        values[key] = asked(key, hidden=is_sensitive(key))
    check_properties(values, f"profile {name}")
    _write(path, properties_text(values))
    click.echo(f"wrote {path}")
    if len(profile_names()) == 1 and current_profile() is None:
        _write(current_profile_file(), name + "\n")
        click.echo(f"commands connect by profile {name} now")


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in a directory that only they may enter."""
    directory = profile_directory()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


@profile.command(
    name="list", epilog=examples("headrace profile list", "headrace profile list --json")
)
@json_option
def list_profiles(as_json: bool) -> None:
    """List the profiles; the one that commands use by themselves is marked with *."""
    current, names = current_profile(), profile_names()
    if as_json:
        print_json({"current": current, "profiles": names})
        return
    for name in names:
        click.echo(f"{'*' if name == current else ' '} {name}")
    if not names:
        click.echo("there are no profiles; make one with `headrace profile add`", err=True)


@profile.command(epilog=examples("headrace profile show prod"))
@click.argument("name", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show the properties of the profile NAME, by default the current one; no secrets."""
    name = name or current_profile()
    if name is None:
        raise ConfigError("no profile is chosen; name one, or see `headrace profile list`")
    path = existing_profile(name)
    shown = {
        key: _HIDDEN if is_sensitive(key) and not value.startswith("${") else value
        for key, value in read_properties(path.read_text("utf-8")).items()
    }
    if as_json:
        print_json({"profile": name, "file": str(path), "properties": shown})
        return
    for key, value in shown.items():
        click.echo(f"{key}={value}")


@profile.command(epilog=examples("headrace profile use prod", "headrace profile use --none"))
@click.argument("name", required=False)
@click.option("--none", "forget", is_flag=True, help="Use no profile unless one is named.")
def use(name: str | None, forget: bool) -> None:
    """Connect by the profile NAME from now on, in commands that name none."""
    if (name is None) != forget:
        raise click.UsageError("Give the name of a profile, or --none.")
    if name is None:
        current_profile_file().unlink(missing_ok=True)
        click.echo(f"commands use no profile now, unless {PROFILE_VARIABLE} names one")
        return
    read_profile(name)
    _write(current_profile_file(), name + "\n")
    click.echo(f"commands connect by profile {name} now")


@profile.command(epilog=examples("headrace profile remove prod --yes"))
@click.argument("name")
@yes_option
def remove(name: str, yes: bool) -> None:
    """Remove the profile NAME."""
    path = existing_profile(name)
    if not yes:
        confirm_deletion(f"profile {name}")
    path.unlink()
    if current_profile() == name:
        current_profile_file().unlink(missing_ok=True)
    click.echo(f"removed {path}")
