import pytest

from headrace.errors import ConfigError, MissingKey
from headrace.security.keyring import (
    NO_KEYS,
    KeyEncryptionKey,
    Keyring,
    check_key_id,
    key_line,
    parse_keyring,
)
from tests.unit.security.encrypting import NEW, OLD, OTHER


def test_the_last_key_seals_unless_another_is_named() -> None:
    text = "# keys\n\n" + key_line(OLD) + key_line(NEW)
    assert parse_keyring(text).current == NEW
    assert parse_keyring(text, "old").current == OLD
    assert parse_keyring(text).keys == (OLD, NEW)


def test_a_key_is_found_by_its_check_value() -> None:
    keyring = Keyring([OLD, NEW])
    assert keyring.find(OLD.check_value) == OLD
    with pytest.raises(MissingKey, match=f"{OTHER.check_value.hex()}.*old.*new.*Nothing is lost"):
        keyring.find(OTHER.check_value)


def test_without_keys_the_error_says_which_setting_to_set() -> None:
    with pytest.raises(MissingKey, match=r"encryption\.key\.source is not set"):
        NO_KEYS.current_key()
    with pytest.raises(MissingKey, match=r"encryption\.key\.source is not set"):
        NO_KEYS.find(OLD.check_value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no key"),
        ("# nothing\n", "has no key"),
        ("just-text\n", "line 1"),
        ("bad id=AAAA\n", "line 1"),
        ("short=U0VDUkVU\n", "key short in line 1 .* is not 32 bytes"),
        ("a=not base64!\n", "key a in line 1"),
        (key_line(OLD) + key_line(OLD), "line 2 .* taken"),
        (key_line(OLD) + key_line(KeyEncryptionKey("same", OLD.secret)), "under two ids"),
    ],
)
def test_a_malformed_source_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_keyring(text)


def test_a_key_that_is_named_and_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no key new.* it has old"):
        parse_keyring(key_line(OLD), "new")


def test_no_secret_is_in_texts() -> None:
    secret = key_line(OLD).partition("=")[2].strip()
    for shown in (repr(OLD), str(OLD), repr(Keyring([OLD])), str(Keyring([OLD]))):
        assert secret not in shown
        assert repr(OLD.secret)[2:20] not in shown
    with pytest.raises(ConfigError) as caught:
        parse_keyring(key_line(OLD)[:-4] + "\n")
    assert secret[:20] not in str(caught.value)


def test_ids_of_keys_are_words() -> None:
    assert check_key_id("2026-11-18") == "2026-11-18"
    with pytest.raises(ConfigError):
        check_key_id("no spaces")
