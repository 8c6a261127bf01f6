"""Variables of the environment in the text of a pipeline file."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.spec.model import SpecError, TopicSink
from headrace.pipelines.spec.yaml_file import UnsetVariable, parse, substitute

VARIABLES = {"HOST": "localhost", "EMPTY": "", "REFERENCE": "${HOST}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${HOST}:9092", "localhost:9092"),
        ("${HOST}${HOST}", "localhostlocalhost"),
        ("${NONE:-other}", "other"),
        ("${HOST:-other}", "localhost"),
        ("${NONE:-}", ""),
        ("${EMPTY}", ""),
        ("${EMPTY:-other}", "other"),
        ("${NONE:-a:-b}", "a:-b"),
        ("$${HOST}", "${HOST}"),
        ("$HOST and ${HOST", "$HOST and ${HOST"),
        ("^a{2}$", "^a{2}$"),
        # What a variable holds is text, and not looked at again.
        ("${REFERENCE}", "${HOST}"),
    ],
)
def test_references_are_replaced(text: str, expected: str) -> None:
    assert substitute(text, VARIABLES) == expected


def test_unset_variable_says_where_it_stands() -> None:
    with pytest.raises(UnsetVariable, match="environment variable NONE is not set") as caught:
        substitute("a ${HOST} ${NONE}", VARIABLES)
    assert caught.value.position == len("a ${HOST} ")


@pytest.mark.parametrize("body", ["", "a b", "1A", "A-b", "A:b"])
def test_what_is_no_name_is_refused(body: str) -> None:
    with pytest.raises(UnsetVariable, match="is not the name of a variable"):
        substitute(f"${{{body}}}", VARIABLES)


@given(st.text(alphabet=st.sampled_from("${}:-A b")))
def test_any_text_is_replaced_or_refused(text: str) -> None:
    with suppress(UnsetVariable):
        assert len(substitute(text, {"A": "1"})) <= len(text)


PIPELINE = """
pipeline: secured
description: ${file:SECRET}
broker: { bootstrap.servers: b:1, sasl.password: "${env:PASSWORD}", client.id: "${HOST}" }
sources: { orders: { topic: orders } }
sinks:
  copy: { from: orders, topic: copies, options: { kafka.ssl.key.password: "${file:SECRET}" } }
"""


def test_references_to_secrets_are_left_to_the_clients_and_replaced_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "not to be read here")
    secret = tmp_path / "secret"
    secret.write_text("of the file\n")
    pipeline = parse(PIPELINE.replace("SECRET", str(secret)), tmp_path / "p.yaml", VARIABLES)
    assert pipeline.description == "of the file"
    assert pipeline.broker["sasl.password"] == "${env:PASSWORD}"
    assert pipeline.broker["client.id"] == "localhost"
    [sink] = pipeline.sinks
    assert isinstance(sink.target, TopicSink)
    assert sink.target.options == {"kafka.ssl.key.password": f"${{file:{secret}}}"}
    assert "PASSWORD" not in repr(pipeline)
    assert str(secret) not in repr(pipeline)


def test_a_reference_to_nothing_has_its_line(tmp_path: Path) -> None:
    text = PIPELINE.replace("SECRET", "/no/such")
    with pytest.raises(SpecError, match=r"p.yaml:3: .*refers to the file /no/such: No such file"):
        parse(text, tmp_path / "p.yaml", VARIABLES)
