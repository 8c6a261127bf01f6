import json
from pathlib import Path

from headrace.storage.key_sources import read_keyring
from tests.unit.cli.invoking import document, invoke


def secrets_in(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [line.partition("=")[2] for line in lines]


def test_a_file_is_made_and_its_key_rotated_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made = invoke("keys", "create", str(path), "--id", "first")
    assert made.exit_code == 0, made.output
    assert f"encryption.key.source=file:{path}" in made.output
    assert path.stat().st_mode & 0o777 == 0o600
    rotated = invoke("keys", "rotate", str(path), "--id", "second")
    assert rotated.exit_code == 0, rotated.output
    assert path.stat().st_mode & 0o777 == 0o600
    keyring = read_keyring(f"file:{path}")
    assert [key.key_id for key in keyring.keys] == ["first", "second"]
    shown = invoke("keys", "list", f"file:{path}")
    found = document(invoke("keys", "list", f"file:{path}", "--json"))
    assert [(key["id"], key["current"]) for key in found] == [("first", False), ("second", True)]
    assert keyring.keys[0].check_value.hex() in shown.output
    for secret in secrets_in(path):
        assert secret not in made.output + rotated.output + shown.output + json.dumps(found)


def test_ids_are_dates_unless_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    invoke("keys", "create", str(path))
    invoke("keys", "rotate", str(path))
    invoke("keys", "rotate", str(path))
    first, second, third = (key.key_id for key in read_keyring(f"file:{path}").keys)
    assert second == f"{first}-2" and third == f"{first}-3"


def test_a_file_is_never_overwritten_and_no_id_used_twice(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    invoke("keys", "create", str(path), "--id", "k")
    before = path.read_bytes()
    refused = invoke("keys", "create", str(path), "--id", "k")
    assert refused.exit_code == 2 and "is there already" in refused.output
    assert invoke("keys", "rotate", str(path), "--id", "k").exit_code == 2
    assert path.read_bytes() == before
