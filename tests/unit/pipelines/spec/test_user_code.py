"""Pipelines in Python files, and the functions of steps in files beside a pipeline."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headrace.pipelines.spec import load
from headrace.pipelines.spec.model import PythonStep, SpecError
from headrace.pipelines.spec.user_code import function_problem, import_file, load_function

BEGIN = "from headrace import pipelines\np = pipelines.pipeline('p')\n"
GOOD = """\
from headrace import pipelines
from beside import large

p = pipelines.pipeline("p", broker="localhost:9092")
same = p
p.source("orders", topic="orders")
p.step(large)
p.sink("out", large, topic="out", options={})
p.sink("lake", large, parquet="lake")
"""


def write(directory: Path, text: str, name: str = "pipeline.py") -> Path:
    path = directory / name
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _forget_modules_beside() -> object:
    before = set(sys.modules)
    path = list(sys.path)
    yield
    assert sys.path == path
    for name in set(sys.modules) - before:
        if name in ("beside", "steps"):
            del sys.modules[name]


def test_file_declares_a_pipeline(tmp_path: Path) -> None:
    write(tmp_path, "def large(orders):\n    return orders\n", "beside.py")
    pipeline = load(write(tmp_path, GOOD))
    assert pipeline.name == "p" and pipeline.directory == tmp_path
    assert pipeline.checkpoint == str(tmp_path / "headrace-pipelines" / "p")
    [step] = pipeline.steps
    assert isinstance(step, PythonStep) and callable(step.function)
    assert str(step.place) == f"{tmp_path}/beside.py:1"
    assert [str(sink.place) for sink in pipeline.sinks] == [
        f"{tmp_path}/pipeline.py:8",
        f"{tmp_path}/pipeline.py:9",
    ]


def test_places_are_told_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, GOOD.replace("from beside import large", "def large(orders): ..."))
    monkeypatch.chdir(tmp_path)
    pipeline = load("pipeline.py")
    assert str(pipeline.place) == "pipeline.py:4"
    assert pipeline.directory == tmp_path


def test_module_is_not_left_to_be_imported_by_name(tmp_path: Path) -> None:
    before = set(sys.modules)
    text = "import dataclasses\n@dataclasses.dataclass\nclass A:\n    b: 'int'\n"
    module = import_file(write(tmp_path, f"{text}def f():\n    return A(1)\n"))
    assert module.f().b == 1
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "pipeline.py:1: no pipeline here: give a variable of the module"),
        ("def f(:\n", "pipeline.py:1: not valid Python: invalid syntax"),
        ("x = 1\ny = 1 / 0\n", "pipeline.py:2: cannot be imported: ZeroDivisionError: division by"),
        ("\nimport nothing_here\n", "pipeline.py:2: cannot be imported: ModuleNotFoundError: No"),
        (
            "def f():\n    raise KeyError('x')\n\nf()\n",
            "pipeline.py:2: cannot be imported: KeyError:",
        ),
        (
            f"{BEGIN}\np.source('a', topc='b')\n",
            "pipeline.py:4: unknown key 'topc' in source 'a'; did you mean 'topic'?",
        ),
        (
            f"{BEGIN}q = pipelines.pipeline('q')\n",
            "pipeline.py:1: several pipelines here: p (line 2), q (line 3); keep one in a file",
        ),
        (
            BEGIN,
            "pipeline.py:2: the pipeline has no sink: nothing would be run",
        ),
    ],
)
def test_files_that_declare_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_error_in_a_file_beside_it_is_told_where_it_was_imported(tmp_path: Path) -> None:
    write(tmp_path, "1 / 0\n", "beside.py")
    with pytest.raises(SpecError, match=r"pipeline\.py:2: cannot be imported: ZeroDivisionError"):
        load(write(tmp_path, GOOD))
    write(tmp_path, "def large(:\n", "beside.py")
    with pytest.raises(SpecError, match=r"beside\.py:1: not valid Python"):
        load(write(tmp_path, GOOD))


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.py: no such file"):
        load(tmp_path / "none.py")


STEPS = """\
import functools
from math import sqrt as root

def one(frame): ...
def two(a, b, *, spark): ...
def optional(a, b=None): ...
def every(*frames, spark=None): ...
def made(spark): ...
@functools.cache
def wrapped(a): ...
alias = one
class Made: ...
if True:
    def guarded(a): ...
"""


@pytest.mark.parametrize(
    ("function", "inputs", "problem"),
    [
        ("steps.py:one", 1, ""),
        ("steps.py:two", 2, ""),
        ("steps.py:optional", 1, ""),
        ("steps.py:optional", 2, ""),
        ("steps.py:every", 5, ""),
        ("steps.py:made", 0, ""),
        # Of these only an import could tell what they take.
        ("steps.py:wrapped", 3, ""),
        ("steps.py:alias", 3, ""),
        ("steps.py:Made", 3, ""),
        ("steps.py:guarded", 3, ""),
        ("steps.py:root", 3, ""),
        ("steps:one", 1, ""),
        ("json:loads", 1, ""),
        ("steps.py:one", 2, "one takes 1 DataFrames, but 'inputs' names 2"),
        ("steps.py:two", 1, "two takes 2 DataFrames, but 'inputs' names 1"),
        ("steps.py:optional", 3, "optional takes 1 to 2 DataFrames, but 'inputs' names 3"),
        ("steps.py:onne", 1, "there is no function 'onne' in steps.py; did you mean 'one'?"),
        ("steps.py:zzzzzz", 1, "there is no function 'zzzzzz' in steps.py; it has one, two,"),
        ("steps.py", 1, "'steps.py' names no function: write file.py:name or package.module:name"),
        ("steps.py:", 1, "'steps.py:' names no function"),
        ("no such:one", 1, "'no such' names no module: write file.py:name"),
        ("nothing_here.steps:one", 1, "there is no module 'nothing_here'; a file is written as"),
        ("none.py:one", 1, "none.py cannot be read: No such file or directory"),
        ("broken.py:one", 1, "broken.py:2 is not valid Python: "),
        ("zeros.py:one", 1, "zeros.py is not valid Python: source code string cannot contain null"),
    ],
)
def test_functions_are_looked_at_without_being_imported(
    tmp_path: Path, function: str, inputs: int, problem: str
) -> None:
    write(tmp_path, f"{STEPS}\nraise SystemExit('imported')\n", "steps.py")
    write(tmp_path, "\ndef one(:\n", "broken.py")
    write(tmp_path, "\0", "zeros.py")
    found = function_problem(function, tmp_path, inputs)
    assert found.startswith(problem) and bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("function", "inputs", "problem"),
    [
        (lambda a, b: a, 2, ""),
        (lambda *frames: frames, 2, ""),
        (lambda a, spark: a, 1, ""),
        (partial(lambda a, b: a, 1), 1, ""),
        (print, 3, ""),
        (dict, 1, ""),
        (lambda a: a, 2, "<lambda> takes 1 DataFrames, but 'inputs' names 2"),
        (lambda a, *more: a, 0, "<lambda> takes 1 or more DataFrames, but 'inputs' names 0"),
    ],
)
def test_functions_themselves_are_looked_at(
    function: Callable[..., object], inputs: int, problem: str
) -> None:
    assert function_problem(function, Path(), inputs) == problem


def test_functions_are_imported(tmp_path: Path) -> None:
    write(tmp_path, "from beside import large\n\ndef one(frame):\n    return large\n", "steps.py")
    write(tmp_path, "large = 5\n", "beside.py")
    assert load_function("steps.py:one", tmp_path)(0) == 5
    assert load_function("steps:one", tmp_path)(0) == 5
    assert load_function("json:loads", tmp_path)("1") == 1
    assert load_function(len, tmp_path) is len
    with pytest.raises(SpecError, match="there is no function 'two' in steps"):
        load_function("steps.py:two", tmp_path)
    with pytest.raises(SpecError, match="No module named 'nothing_here'"):
        load_function("nothing_here:f", tmp_path)
