"""Properties of clients in files and profiles, and references to secrets kept elsewhere.

A value may refer to a variable, `${env:NAME}`, or to the text of a file, `${file:PATH}`, so that no
secret need be written beside it. Rule: no error quotes a value, which may be a secret.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from headrace.config.properties import read_properties
from headrace.errors import ConfigError

_DIRECTORY_VARIABLE = "HEADRACE_CONFIG_DIR"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
# A value that is a secret, or the text of a certificate, is far smaller.
_REFERENCE_BYTES_MAX = 1_048_576


def read_client_config(path: Path) -> dict[str, str]:
    """The properties of a file, references resolved; ConfigError names the place of an error."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text; give a properties file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
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


def resolved_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties with the references in their values replaced."""
    return {name: resolved(value, name) for name, value in properties.items()}


# Profiles: properties files in the user's own directory, each under a name.


def profile_directory() -> Path:
    """The directory of profiles."""
    if given := os.environ.get(_DIRECTORY_VARIABLE):
        return Path(given) / "profiles"
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "headrace" / "profiles"


def profile_path(name: str) -> Path:
    """The file of a profile; ConfigError for a name that no profile can have."""
    if not _PROFILE_NAME.match(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a profile; use letters, digits, '.', '_' and '-'"
        )
    return profile_directory() / f"{name}.properties"


def existing_profile(name: str) -> Path:
    """The file of a profile that exists; ConfigError if there is none."""
    path = profile_path(name)
    if not path.exists():
        raise ConfigError(
            f"there is no profile {name!r}; see `headrace profile list`, or make it with"
            f" `headrace profile add {name}`"
        )
    return path
