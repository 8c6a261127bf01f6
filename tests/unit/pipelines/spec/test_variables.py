"""Variables of the environment in the text of a pipeline file."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.spec.yaml_file import UnsetVariable, substitute

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
