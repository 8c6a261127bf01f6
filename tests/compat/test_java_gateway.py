"""Exceptions of Kafka's Java client in a process that has a Spark session too."""

from collections.abc import Iterator
from typing import Any

import py4j.java_gateway  # type: ignore[import-untyped]
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors.exceptions.captured import install_exception_handler

from tests.compat.java_gateway import java_gateway


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with java_gateway() as classes:
        yield classes


@pytest.fixture(params=["with Spark's handler", "without"])
def handler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's handler of exceptions, as a session installs it; py4j's own is put back."""
    plain = py4j.protocol.get_return_value
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", plain)
    if request.param == "with Spark's handler":
        install_exception_handler()
        assert py4j.java_gateway.get_return_value is not plain


@pytest.mark.usefixtures("handler")
def test_an_exception_is_javas_own(jvm: Any) -> None:
    with pytest.raises(Py4JJavaError) as caught:
        jvm.java.lang.Integer.parseInt("no number")
    error = caught.value.java_exception
    assert error.getClass().getName() == "java.lang.NumberFormatException"
    assert 'For input string: "no number"' in str(caught.value)
    assert jvm.java.lang.Integer.parseInt("7") == 7
