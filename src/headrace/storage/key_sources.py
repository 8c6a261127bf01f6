"""Sources of key-encryption keys: a file, a variable of the environment, or a command.

Rule: every wait and every size has a bound, and no error repeats what a source has said.
"""

import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from threading import Timer
from typing import NamedTuple

from headrace.config import BrokerConfig
from headrace.errors import ConfigError
from headrace.security.keyring import (
    NO_KEYS,
    SOURCE_BYTES_MAX,
    KeyEncryptionKey,
    Keyring,
    key_line,
    parse_keyring,
)

SETTING = "encryption.key.source"
COMMAND_TIMEOUT_MS = 10_000

_HEADING = """\
# Keys of encrypted topics (encryption.key.source), the last of which encrypts. Keep a copy of this
# file apart from the brokers' disks: without it what is encrypted is lost.
"""


class SourceKind(Enum):
    """The kinds of sources, as they are written before the colon."""

    FILE = "file"
    ENVIRONMENT = "env"
    COMMAND = "command"


class KeySource(NamedTuple):
    """A source of keys: a path, the name of a variable, or a command with its arguments."""

    kind: SourceKind
    place: str

    def __str__(self) -> str:
        if self.kind is SourceKind.COMMAND:
            return f"the output of {shlex.split(self.place)[0]}"  # Arguments may tell too much.
        return f"{'the variable ' if self.kind is SourceKind.ENVIRONMENT else ''}{self.place}"


def parse_source(text: str) -> KeySource | None:
    """A source as it is written in settings and options; None for an empty text."""
    if not text:
        return None
    kind, separator, place = text.partition(":")
    try:
        if separator and place.strip() and (kind != "command" or shlex.split(place)):
            return KeySource(SourceKind(kind), place.strip())
    except ValueError:
        pass
    raise ConfigError(f"{SETTING} must be file:PATH, env:NAME or command:PROGRAM ARGUMENTS")


def read_keyring(
    source: str, current_id: str = "", *, timeout_ms: int = COMMAND_TIMEOUT_MS
) -> Keyring:
    """The keys of a source, none for an empty one; ConfigError if it cannot be read.

    It may wait for the disk or the command: for a worker thread.
    """
    parsed = parse_source(source)
    if parsed is None:
        return NO_KEYS
    match parsed.kind:
        case SourceKind.FILE:
            content = _read_file(parsed.place)
        case SourceKind.ENVIRONMENT:
            value = os.environ.get(parsed.place)
            if value is None:
                raise _refused(f"there is no variable {parsed.place}")
            content = value.encode(errors="surrogateescape")
        case SourceKind.COMMAND:
            content = _run(parsed, timeout_ms)
    if len(content) > SOURCE_BYTES_MAX:
        raise _refused(f"{parsed} has more than {SOURCE_BYTES_MAX} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _refused(f"{parsed} is not text in UTF-8") from None
    return parse_keyring(text, current_id, str(parsed))


def configured_keyring(config: BrokerConfig) -> Keyring:
    """The keys of a broker, by its settings."""
    return read_keyring(
        config.encryption_key_source,
        config.encryption_key_id,
        timeout_ms=config.encryption_key_command_timeout_ms,
    )


def _refused(reason: str) -> ConfigError:
    return ConfigError(reason, setting=SETTING)


def _read_file(path: str) -> bytes:
    try:
        # Not blocked by a pipe that somebody has put in its place.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise _refused(f"{path} is not a file")
            if state.st_mode & 0o077:
                raise _refused(
                    f"others than its owner may use {path}, so its keys are no secret;"
                    " make it chmod 600"
                )
            return file.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror or error}") from None


def _run(source: KeySource, timeout_ms: int) -> bytes:
    """The output of a command, which is killed with its children when its time is over."""
    try:
        process = subprocess.Popen(
            shlex.split(source.place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _refused(f"{source} cannot be had: {reason}") from None
    late: list[bool] = []

    def end() -> None:
        late.append(True)
        _kill(process)

    timer = Timer(timeout_ms / 1000, end)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            output = process.stdout.read(SOURCE_BYTES_MAX + 1)
        if len(output) > SOURCE_BYTES_MAX:
            _kill(process)
        status = process.wait()
    finally:
        timer.cancel()
        _kill(process)
        process.wait()
    if late:
        raise _refused(
            f"{source} did not come within {timeout_ms} ms (encryption.key.command.timeout.ms)"
        )
    if len(output) <= SOURCE_BYTES_MAX and status:
        raise _refused(f"{source} ended with status {status}; run it to see why")
    return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        # The whole group: a child of a script may hold the pipe open.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def write_key_file(path: str, keys: Sequence[KeyEncryptionKey], *, replace: bool) -> None:
    """Write a file of keys that only its owner may use, durably; the old file or the new one stays.

    ConfigError if it cannot be written, or is there and must not be replaced.
    """
    content = _HEADING + "".join(key_line(key) for key in keys)
    directory = os.path.dirname(os.path.abspath(path))
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.rename(temporary, path)
            else:
                os.link(temporary, path)  # Fails if the file is there.
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        directory_descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory_descriptor)
        finally:
            os.close(directory_descriptor)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already; `headrace keys rotate` adds a key to it"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
