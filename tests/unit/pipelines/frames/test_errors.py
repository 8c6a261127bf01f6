"""What is said when a pipeline cannot be built: one line, of the part, with a remedy."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from headrace.pipelines.frames.dataframes import import_root
from headrace.pipelines.frames.errors import blaming, essence, line_of
from headrace.pipelines.spec.model import BuildError, SourceLocation


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. Verify it.\nMore", "the table"),
        ("\n[PARSE_ERROR] Syntax error near 'x'. SQLSTATE: 42 (line 1)", "syntax error near 'x'"),
        ("[A.B] Bad. SQLSTATE: 42703; line 1 pos 7;\n'Project", "bad"),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed\nTraceback (most recent call last):\n"
            "  File x\n"
            "headrace.pipelines.datasource.errors.OptionError: no option x; use y\n\nmore",
            "no option x; use y",
        ),
        ("", "AnalysisException"),
    ],
)
def test_the_essence_of_what_spark_says(message: str, text: str) -> None:
    assert essence(AnalysisException(message)).startswith(text)


def test_lines_are_found_however_spark_writes_them() -> None:
    assert line_of(AnalysisException("x SQLSTATE: 42601 (line 3, pos 0)")) == 3
    assert line_of(AnalysisException("x; line 12 pos 7;\nplan")) == 12
    assert line_of(AnalysisException("no place")) is None


def test_a_refusal_of_sparks_is_the_parts() -> None:
    with (
        pytest.raises(BuildError) as caught,
        blaming(SourceLocation("a.yaml", 3), "step s", "do that"),
    ):
        raise AnalysisException("[X] It is wrong. SQLSTATE: 1")
    assert str(caught.value) == "a.yaml:3: step s: it is wrong; do that"
    assert (caught.value.part, str(caught.value.place)) == ("step s", "a.yaml:3")


def test_modules_are_traced_to_where_they_are_imported_from() -> None:
    assert import_root("steps", Path("/p/steps.py")) == Path("/p")
    assert import_root("shop.steps", Path("/p/shop/steps.py")) == Path("/p")
    assert import_root("shop", Path("/p/shop/__init__.py")) == Path("/p")
    assert import_root("other", Path("/p/steps.py")) is None
