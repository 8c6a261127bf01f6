"""What `import headrace` offers: every name, imported when it is used and not before."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.testing.time_limits import scaled

# What the documentation promises.
CLIENTS = {"Producer", "Consumer", "Admin"}
VALUES = {
    "Acl",
    "EARLIEST",
    "LATEST",
    "BatchMetadata",
    "DelegationToken",
    "ScramDeletion",
    "ScramUpsertion",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "TopicPartition",
}
ERRORS = {
    "AuthenticationFailed",
    "BatchRefused",
    "BufferExhausted",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "ConnectionFailed",
    "HeadraceError",
    "IllegalState",
    "KafkaError",
    "LogTruncated",
    "NoOffset",
    "OutcomeUnknown",
    "ProducerFenced",
    "RecordTooLarge",
    "SerializationFailed",
    "SomeFailed",
    "TimedOut",
    "TransactionAbortable",
    "TransactionAborted",
    "TransactionFatal",
    "UnknownTopic",
    "Unreachable",
}
OTHERS = {"ErrorCode", "__version__", "aio", "testing"}


def run(program: str) -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_package_exports_what_is_promised() -> None:
    assert set(headrace.__all__) == CLIENTS | VALUES | ERRORS | OTHERS
    assert len(headrace.__all__) == len(set(headrace.__all__))


@pytest.mark.parametrize("name", headrace.__all__)
def test_every_name_resolves(name: str) -> None:
    assert getattr(headrace, name) is getattr(headrace, name)


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_asyncio_has_the_same_clients(name: str) -> None:
    asyncio_client, blocking_client = getattr(headrace.aio, name), getattr(headrace, name)
    assert asyncio_client is not blocking_client
    assert asyncio_client.__name__ == blocking_client.__name__ == name
    assert set(headrace.aio.__all__) == CLIENTS


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_both_kinds_of_client_have_the_same_methods(name: str) -> None:
    def methods(client: type) -> set[str]:
        return {entry for entry in dir(client) if not entry.startswith("_")}

    assert methods(getattr(headrace.aio, name)) == methods(getattr(headrace, name))


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_is_one_of_ours(name: str) -> None:
    assert issubclass(getattr(headrace, name), headrace.HeadraceError)


def test_names_are_listed_before_they_are_used() -> None:
    listed = run("import headrace; print(*dir(headrace))").split()
    assert set(headrace.__all__) <= set(listed)


def test_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Producr'"):
        headrace.Producr  # type: ignore[attr-defined]  # noqa: B018


def test_import_loads_nothing_else() -> None:
    program = (
        "import importlib, sys; before = set(sys.modules); import headrace;"
        " print(*sorted(set(sys.modules) - before))"
    )
    assert run(program) == "headrace"


def test_star_import_works() -> None:
    assert run("from headrace import *; print(Producer.__name__, TimedOut.__name__)") == (
        "Producer TimedOut"
    )


def test_type_checkers_are_told_of_every_name() -> None:
    """The names under TYPE_CHECKING come from the modules that `__getattr__` takes them from."""
    tree = ast.parse(Path(headrace.__file__).read_text())
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    told = {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {name: f"headrace.{module}" for name, module in headrace._MODULE_OF.items()}
    assert told == modules | dict.fromkeys(("aio", "testing"), "headrace")
    assert set(told) | {"__version__"} == set(headrace.__all__)
