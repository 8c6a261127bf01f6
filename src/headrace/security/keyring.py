"""Key-encryption keys by their ids, as the lines `id=key` of a key source.

Rule: no secret is in a repr, an error or a log line. A key is named by its id, and in batches by
its check value, which tells a key that is missing from one that is there and does not fit.
"""

import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import ConfigError, MissingKey

KEY_SIZE = 32
CHECK_VALUE_SIZE = 8
KEYS_MAX = 256
# A source of more bytes is refused before it is parsed.
SOURCE_BYTES_MAX = 65_536

_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CHECK_LABEL = b"headrace key check value"


@dataclass(frozen=True, slots=True)
class KeyEncryptionKey:
    """A key that wraps data keys. Its check value is public, and stands in every batch."""

    key_id: str
    secret: bytes = field(repr=False)

    @property
    def check_value(self) -> bytes:
        return hmac.digest(self.secret, _CHECK_LABEL, "sha256")[:CHECK_VALUE_SIZE]

    def __str__(self) -> str:
        return f"{self.key_id} (check value {self.check_value.hex()})"


class Keyring:
    """The keys that decrypt batches, and the current key, which encrypts new batches."""

    def __init__(self, keys: Sequence[KeyEncryptionKey] = (), current_id: str = "") -> None:
        self.keys = tuple(keys)
        self._by_check_value: Mapping[bytes, KeyEncryptionKey] = {
            key.check_value: key for key in keys
        }
        named = [key for key in keys if key.key_id == current_id] if current_id else keys[-1:]
        self.current = named[0] if named else None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Keyring) and self.keys == other.keys and self.current == other.current
        )

    def __hash__(self) -> int:
        return hash(tuple(self._by_check_value))

    def __repr__(self) -> str:
        return f"Keyring({', '.join(map(str, self.keys))})"

    def find(self, check_value: bytes) -> KeyEncryptionKey:
        """The key with a check value; MissingKey if there is none."""
        key = self._by_check_value.get(check_value)
        if key is None:
            raise MissingKey(
                f"they are encrypted under a key with the check value {check_value.hex()}, and"
                f" {self._known()}. Nothing is lost: add that key to the source"
            )
        return key

    def current_key(self) -> KeyEncryptionKey:
        """The current key; MissingKey if there is none."""
        if self.current is None:
            raise MissingKey(
                f"records are to be encrypted (encryption.enable), and {self._known()}"
            )
        return self.current

    def _known(self) -> str:
        if not self.keys:
            return "there is no key: encryption.key.source is not set"
        return f"encryption.key.source has only {', '.join(map(str, self.keys))}"


NO_KEYS = Keyring()


def parse_keyring(text: str, current_id: str = "", origin: str = "the key source") -> Keyring:
    """The keys of a source; ConfigError, which repeats none of the text, if it is malformed."""
    keys: dict[str, KeyEncryptionKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        key_id, separator, encoded = content.partition("=")
        key_id = key_id.strip()
        if not separator or _KEY_ID.fullmatch(key_id) is None:
            raise ConfigError(f"line {number} of {origin} is not id=key in base64")
        if key_id in keys:
            raise ConfigError(f"line {number} of {origin} has the id {key_id}, which is taken")
        try:
            secret = b64decode(encoded.strip(), validate=True)
        except Base64Error:
            secret = b""
        if len(secret) != KEY_SIZE:
            raise ConfigError(
                f"the key {key_id} in line {number} of {origin} is not {KEY_SIZE} bytes in base64;"
                " `headrace keys create` makes one"
            )
        keys[key_id] = KeyEncryptionKey(key_id, secret)
    if not keys:
        raise ConfigError(f"{origin} has no key; `headrace keys create` makes one")
    if len(keys) > KEYS_MAX:
        raise ConfigError(f"{origin} has {len(keys)} keys, and {KEYS_MAX} are the most")
    if len({key.secret for key in keys.values()}) < len(keys):
        raise ConfigError(f"{origin} has one key under two ids")
    if current_id and current_id not in keys:
        raise ConfigError(
            f"{origin} has no key {current_id}, which encryption.key.id names; it has"
            f" {', '.join(keys)}"
        )
    return Keyring(list(keys.values()), current_id)


def key_line(key: KeyEncryptionKey) -> str:
    """The line of a key in a source. It is a secret."""
    return f"{key.key_id}={b64encode(key.secret).decode()}\n"


def check_key_id(key_id: str) -> str:
    """A key's id as it is; ConfigError if it cannot be one."""
    if _KEY_ID.fullmatch(key_id) is None:
        raise ConfigError(
            f"{key_id!r} is no id of a key: take letters, digits, dots, dashes, at most 64"
        )
    return key_id
