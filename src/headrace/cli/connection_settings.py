"""Properties that a command's connections have: of a file, a profile, and the environment.

Precedence: an option of the command, then a variable `HEADRACE_...`, then the file of
`--client-config` or the profile. The names are those of Kafka's clients. What reads files imports
the client, and is imported when a command reads one: help must not wait for it.
"""

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.options import Option, OptionTable, options_of

if TYPE_CHECKING:
    from headrace.net.client_connection import ClientSecurity

Command = TypeVar("Command", bound=Callable[..., Any])

BOOTSTRAP = "bootstrap.servers"
CONFIG_VARIABLE, PROFILE_VARIABLE = "HEADRACE_CLIENT_CONFIG", "HEADRACE_PROFILE"
_PREFIX = "HEADRACE_"
_SETTINGS = f"{__name__}.settings"


def connection_options(command: Command) -> Command:
    """The options of a command for its connection: servers, properties file, profile."""
    command = click.option(
        "--profile",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_read_profile,
        help="Connect as this profile says; see `headrace profile`. The variable"
        f" {PROFILE_VARIABLE} does the same.",
    )(command)
    return click.option(
        "--client-config",
        "--command-config",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_read_client_config,
        help="Connect with the properties in FILE, under the names of Kafka's clients."
        f" The variable {CONFIG_VARIABLE} does the same.",
    )(command)


def connection_properties() -> Mapping[str, str]:
    """The properties for connections of the command that runs, `bootstrap.servers` included."""
    context = click.get_current_context(silent=True)
    if context is None:
        return _from_environment({})
    found: Mapping[str, str] | None = context.meta.get(_SETTINGS)
    if found is None:
        context.meta[_SETTINGS] = found = _from_environment(_defaults())
    return found


def client_properties(client: str) -> dict[str, str]:
    """Those of the connection's properties that a kind of client has, without the brokers."""
    table = _tables()[client]
    known = {name for option in table.values() for name in option.properties}
    return {
        name: text
        for name, text in connection_properties().items()
        if name in known and name != BOOTSTRAP
    }


def connection_security() -> "ClientSecurity":
    """The security of the connections of the command that runs."""
    from headrace.client.options import from_properties  # noqa: PLC0415
    from headrace.client.security_options import SecurityOptions  # noqa: PLC0415

    names = {name for option in _security_options().values() for name in option.properties}
    chosen = {name: text for name, text in connection_properties().items() if name in names}
    values, _ = _tables()["admin"].check(from_properties(chosen, "admin"))
    security = {name: values[name] for name in _security_options()}
    return SecurityOptions(**security).client_security()


def profile_names() -> list[str]:
    """The names of all profiles, sorted."""
    from headrace.client.property_files import profile_directory  # noqa: PLC0415

    directory = profile_directory()
    return sorted(path.stem for path in directory.glob("*.properties"))


def current_profile_file() -> Path:
    """The file that has the name of the profile for commands that name none."""
    from headrace.client.property_files import profile_directory  # noqa: PLC0415

    return profile_directory().parent / "current-profile"


def current_profile() -> str | None:
    """The profile for commands that name none."""
    try:
        return current_profile_file().read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def read_profile(name: str) -> dict[str, str]:
    """The properties of a profile."""
    from headrace.client.property_files import existing_profile  # noqa: PLC0415

    return _read_checked(existing_profile(name))


def _read_checked(path: Path) -> dict[str, str]:
    from headrace.client.options import check_properties  # noqa: PLC0415
    from headrace.client.property_files import read_client_config  # noqa: PLC0415

    properties = read_client_config(path)
    check_properties(properties, str(path))
    return properties


def _read_client_config(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> None:
    if value is not None:
        if _SETTINGS in context.meta:
            raise click.UsageError("--client-config and --profile are two ways to say the same.")
        context.meta[_SETTINGS] = _from_environment(_read_checked(Path(value)))


def _read_profile(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        if _SETTINGS in context.meta:
            raise click.UsageError("--client-config and --profile are two ways to say the same.")
        context.meta[_SETTINGS] = _from_environment(read_profile(value))


def _defaults() -> dict[str, str]:
    """The properties of the file or profile that the environment names, or of the current one."""
    if file := os.environ.get(CONFIG_VARIABLE):
        return _read_checked(Path(file))
    name = os.environ.get(PROFILE_VARIABLE) or current_profile()
    return {} if name is None else read_profile(name)


def _from_environment(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties, with those that variables of the environment set in their place."""
    found = dict(properties)
    for option in _security_options().values():
        value = os.environ.get(_PREFIX + option.name.upper())
        if value is not None:
            for name in option.properties:
                found.pop(name, None)
            found[option.properties[0]] = value
    return found


# Imported by the functions that need them: `headrace --help` would wait for clients.


@cache
def _security_options() -> Mapping[str, Option]:
    from headrace.client.security_options import SecurityOptions  # noqa: PLC0415

    return options_of(SecurityOptions)


def _tables() -> Mapping[str, OptionTable]:
    from headrace.client.options import OPTIONS  # noqa: PLC0415

    return OPTIONS
