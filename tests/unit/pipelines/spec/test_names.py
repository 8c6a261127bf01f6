"""What `headrace.pipelines` offers, imported when it is used and not before."""

import subprocess
import sys

import pytest

from headrace import pipelines
from headrace.testing.time_limits import scaled

HEAVY = ("pyspark", "pyarrow", "pandas", "yaml", "fastavro", "deltalake", "pyiceberg", "psycopg")


def modules_after(program: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has after a program."""
    told = f"{program}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", told],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize("name", pipelines.__all__)
def test_every_name_resolves(name: str) -> None:
    assert getattr(pipelines, name) is getattr(pipelines, name)
    assert name in dir(pipelines)


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        _ = pipelines.sesion  # type: ignore[attr-defined]


def test_session_is_the_function_whoever_imports_its_module() -> None:
    program = "import headrace.pipelines.session\nfrom headrace import pipelines\n"
    assert modules_after(f"{program}assert callable(pipelines.session)") == set()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import headrace", set()),
        ("import headrace.pipelines", set()),
        ("import headrace.pipelines.spec.checks", set()),
        ("import headrace.pipelines.spec.builder", set()),
        ("import headrace.pipelines.spec.yaml_file", {"yaml"}),
        (
            "from headrace.pipelines import load\n"
            "from headrace.pipelines.spec.templates import write\n"
            "import tempfile\n"
            "with tempfile.TemporaryDirectory() as directory: load(write(directory)[0])",
            {"yaml"},
        ),
    ],
)
def test_what_is_imported(program: str, expected: set[str]) -> None:
    assert modules_after(program) == expected
