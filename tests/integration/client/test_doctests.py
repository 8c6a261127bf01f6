"""Every example in a docstring of the client runs against a broker and shows what it says.

An example finds `producer`, `consumer` and `admin`, connected, and `topic`, a name of its own, to
which the consumer is subscribed. Other clients find the broker by the environment.
"""

import ast
import doctest
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.support import BrokerProcess

PACKAGE = Path(__file__).resolve().parents[3] / "src" / "headrace"
CLIENTS = ("Producer", "Consumer", "Admin")

_numbers = count(1)


def _docstrings() -> Iterator[tuple[str, str, int, str]]:
    """Module, name, line and text of every docstring with an example.

    They are read from the source: a compiled function is nothing that doctest would look into.
    """
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    folders = (
        PACKAGE.glob("*.py"),
        PACKAGE.glob("client/**/*.py"),
        PACKAGE.glob("testing/**/*.py"),
    )
    for path in sorted(path for folder in folders for path in folder):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        for node, name in _named(ast.parse(path.read_text()), ""):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                if ">>>" in text:
                    yield module, name, getattr(node, "lineno", 1), text


def _named(node: ast.AST, name: str) -> Iterator[tuple[ast.AST, str]]:
    yield node, name
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _named(child, f"{name}.{child.name}" if name else child.name)


EXAMPLES = list(_docstrings())


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("doctests")) as broker:
        yield broker.address


@contextmanager
def _names() -> Iterator[dict[str, Any]]:
    """What an example may use without saying where it comes from."""
    topic = f"example-{next(_numbers)}"
    with ExitStack() as stack:
        admin = stack.enter_context(headrace.Admin())
        admin.create_topic(topic)
        yield {
            "headrace": headrace,
            "topic": topic,
            "admin": admin,
            "producer": stack.enter_context(headrace.Producer()),
            "consumer": stack.enter_context(
                headrace.Consumer(topic, group_id=f"{topic}-readers", auto_offset_reset="earliest")
            ),
        }


@pytest.mark.parametrize(
    ("module", "name", "line", "text"),
    EXAMPLES,
    ids=[f"{module.removeprefix('headrace.')}:{name}" for module, name, _, _ in EXAMPLES],
)
def test_example_shows_what_it_says(
    module: str,
    name: str,
    line: int,
    text: str,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", address)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with _names() as names:
        namespace = vars(import_module(module)) | names
        test = doctest.DocTestParser().get_doctest(text, namespace, name, module, line)
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_examples_are_found() -> None:
    modules = {module for module, _, _, _ in EXAMPLES}
    assert {
        "headrace.client.admin.admin",
        "headrace.client.consumer.consumer",
        "headrace.client.options",
        "headrace.client.producer.producer",
        "headrace.client.serializers",
    } <= modules


@pytest.mark.parametrize("package", [headrace, headrace.aio], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("client", CLIENTS)
def test_every_public_method_says_what_it_does(package: Any, client: str) -> None:
    kind = getattr(package, client)
    assert kind.__doc__
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public >= {"close"}
    assert sorted(name for name in public if not inspect.getdoc(getattr(kind, name))) == []


@pytest.mark.parametrize("name", [entry for entry in headrace.__all__ if entry != "__version__"])
def test_every_public_name_says_what_it_is(name: str) -> None:
    public = getattr(headrace, name)
    if isinstance(public, type):
        assert public.__doc__
        assert not public.__doc__.startswith(f"{name}("), "that is the dataclass's own text"
    else:
        assert inspect.ismodule(public) or isinstance(public, int)
