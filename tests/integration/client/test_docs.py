"""Every snippet of the client's guide runs as it is written, and prints what it says it prints."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.time_limits import scaled
from tests.support import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "client.md").read_text()
DEFAULT_ADDRESS = "localhost:9092"

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROMISE = re.compile(r"\bprint\(.*\)  # (.+)$", re.MULTILINE)


def _sections() -> dict[str, str]:
    """The programs of the page: a section's snippets together, after the import they all need."""
    first, *sections = re.split(r"^## ", GUIDE, flags=re.MULTILINE)
    [prelude] = _BLOCK.findall(first)
    programs = {text.splitlines()[0]: "\n".join(_BLOCK.findall(text)) for text in sections}
    return {title: f"{prelude}\n{code}" for title, code in programs.items() if code}


SECTIONS = _sections()


@pytest.fixture(scope="module")
def guide_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("guide")) as broker:
        yield broker


def _run(program: str, address: str) -> str:
    environment = os.environ | {"HEADRACE_BOOTSTRAP_SERVERS": address}
    # Warnings are errors: a guide must not teach people to leave things open.
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=scaled(90),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def _promised(program: str) -> list[str]:
    """What the comments after `print` say, in order."""
    return _PROMISE.findall(program)


@pytest.mark.parametrize("title", SECTIONS)
def test_section_prints_what_it_says(title: str, guide_broker: BrokerProcess) -> None:
    program = SECTIONS[title]
    printed = _run(program.replace(DEFAULT_ADDRESS, guide_broker.address), guide_broker.address)
    lines = iter(printed.splitlines())
    missing = [text for text in _promised(program) if text not in lines]
    assert missing == [], printed


def test_guide_has_a_snippet_for_everything_a_client_does() -> None:
    assert len(SECTIONS) >= 10
    assert sum(len(_promised(program)) for program in SECTIONS.values()) >= 20


@pytest.mark.parametrize("title", SECTIONS)
def test_snippets_are_formatted_and_keep_what_they_promise_beside_a_print(title: str) -> None:
    program = SECTIONS[title]
    ast.parse(program)
    prints = len(re.findall(r"\bprint\(", program))
    # A print without a promise is allowed once: a listener's, which may or may not be called.
    assert prints - len(_promised(program)) <= 1
