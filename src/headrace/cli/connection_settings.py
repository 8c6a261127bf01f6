"""Properties that a command's connections have: of a file, a profile, and the environment.

Precedence: an option of the command, then a variable `HEADRACE_...`, then the file of
`--client-config` or the profile. The names are those of Kafka's clients. A value may refer to a
variable, `${env:NAME}`, or to the text of a file, `${file:PATH}`, so that no secret need be written
beside it.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.config.properties import read_properties
from headrace.errors import ConfigError
from headrace.options import Option, OptionTable, options_of, unknown_name

if TYPE_CHECKING:
    from headrace.net.client_security import ClientSecurity

Command = TypeVar("Command", bound=Callable[..., Any])

BOOTSTRAP = "bootstrap.servers"
CONFIG_VARIABLE, PROFILE_VARIABLE = "HEADRACE_CLIENT_CONFIG", "HEADRACE_PROFILE"
_DIRECTORY_VARIABLE = "HEADRACE_CONFIG_DIR"
_PREFIX = "HEADRACE_"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_SETTINGS = f"{__name__}.settings"
# A value that is a secret, or the text of a certificate, is far smaller.
_REFERENCE_BYTES_MAX = 1_048_576


def connection_options(command: Command) -> Command:
    """The options by which a command is told how to connect."""
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


def read_client_config(path: Path) -> dict[str, str]:
    """The properties of a file, references resolved; ConfigError names the place of an error."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text; give a properties file") from None
    try:
        properties = read_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return {
        name: resolved(value, f"{path}, line {properties.lines[name]}: {name}")
        for name, value in properties.items()
    }


def resolved(value: str, place: str) -> str:
    """A value with its references replaced; ConfigError names the place, and never the value."""

    def content(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if name not in os.environ:
                raise ConfigError(f"{place} refers to the variable {name}, which is not set")
            return os.environ[name]
        try:
            with Path(name).expanduser().open(encoding="utf-8") as file:
                text = file.read(_REFERENCE_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"{place} refers to the file {name}: {reason}") from None
        return text.rstrip("\r\n")

    return _REFERENCE.sub(content, value)


def check_properties(names: Mapping[str, object], place: str) -> None:
    """Refuse a name that no client has; programs share such files, so any client's is allowed."""
    known = {
        name
        for table in _tables().values()
        for option in table.values()
        for name in option.properties
    }
    for name in names:
        if name not in known:
            _tables()["admin"].refuse(name)
            raise ConfigError(f"{place}: {unknown_name('property', name, known)}")


def is_sensitive(name: str) -> bool:
    """Whether the value of a client's property is a secret."""
    return any(
        option.sensitive and name in option.properties
        for table in _tables().values()
        for option in table.values()
    )


# Profiles: properties files in the user's own directory, each under a name.


def profile_directory() -> Path:
    """The directory of profiles."""
    if given := os.environ.get(_DIRECTORY_VARIABLE):
        return Path(given) / "profiles"
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "headrace" / "profiles"


def profile_path(name: str) -> Path:
    """The file of a profile; ConfigError for a name that cannot be one's."""
    if not _PROFILE_NAME.match(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a profile; use letters, digits, '.', '_' and '-'"
        )
    return profile_directory() / f"{name}.properties"


def profile_names() -> list[str]:
    """The names of all profiles, sorted."""
    directory = profile_directory()
    return sorted(path.stem for path in directory.glob("*.properties"))


def current_profile_file() -> Path:
    """The file that has the name of the profile for commands that name none."""
    return profile_directory().parent / "current-profile"


def current_profile() -> str | None:
    """The profile for commands that name none."""
    try:
        return current_profile_file().read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def read_profile(name: str) -> dict[str, str]:
    """The properties of a profile."""
    path = profile_path(name)
    if not path.exists():
        raise ConfigError(
            f"there is no profile {name!r}; see `headrace profile list`, or make it with"
            f" `headrace profile add {name}`"
        )
    properties = read_client_config(path)
    check_properties(properties, str(path))
    return properties


def _read_client_config(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> None:
    if value is not None:
        if _SETTINGS in context.meta:
            raise click.UsageError("--client-config and --profile are two ways to say the same.")
        properties = read_client_config(Path(value))
        check_properties(properties, value)
        context.meta[_SETTINGS] = _from_environment(properties)


def _read_profile(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        if _SETTINGS in context.meta:
            raise click.UsageError("--client-config and --profile are two ways to say the same.")
        context.meta[_SETTINGS] = _from_environment(read_profile(value))


def _defaults() -> dict[str, str]:
    """The properties of the file or profile that the environment names, or of the current one."""
    if file := os.environ.get(CONFIG_VARIABLE):
        properties = read_client_config(Path(file))
        check_properties(properties, file)
        return properties
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
