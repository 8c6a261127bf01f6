"""Options: value types, tables of options, and names that nobody declared."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, HeadraceError
from headrace.options import (
    Bool,
    Custom,
    Duration,
    Float,
    Int,
    Json,
    ListOf,
    Long,
    NotAllowed,
    OneOf,
    Option,
    OptionTable,
    Password,
    Short,
    Text,
    ValueType,
    nearest,
    one_of,
    suggestion,
)


class DuckError(HeadraceError):
    """The error of a table that has errors of its own."""


def make(values: ValueType, default: Any = None, **rest: Any) -> Option:
    return Option(**{"name": "o", "type": values, "default": default, "doc": "An option."} | rest)


def refusal(act: Callable[[], object], error: type[HeadraceError] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "allowed", "allowed_value"),
    [
        (Int(), "a whole number", "a whole number"),
        (Int(1, 9), "a whole number from 1 to 9", "a whole number from 1 to 9"),
        (Int(maximum=9), "a whole number of at most 9", "a whole number of at most 9"),
        (Int(0, optional=True), "a whole number of at least 0", "a whole number of at least 0,"),
        (Long(0, unit="ms since 1970"), "ms since 1970, a whole number of at least 0", "ms since"),
        (Float(0.0, 1.0), "a number from 0.0 to 1.0", "a number from 0.0 to 1.0"),
        (Bool(), "true or false", "True or False"),
        (Text(optional=True), "text", "text, or None"),
        (one_of("a", "b"), "one of a, b", "one of 'a', 'b'"),
        (OneOf({"a": 1}, otherwise="a function"), "one of a", "one of 'a', or a function"),
        (ListOf(("a", "b")), "a comma-separated list of a, b", "one or more of 'a', 'b'"),
        (ListOf(), "a comma-separated list", "a list of texts"),
        (Json("{}"), "JSON such as {}", "a dict such as {}"),
        (Custom("a name", str), "a name", "a name"),
    ],
)
def test_texts_and_python_values_have_their_own_words(
    values: ValueType, allowed: str, allowed_value: str
) -> None:
    assert values.allowed == allowed
    assert values.allowed_value.startswith(allowed_value)


@pytest.mark.parametrize(
    ("values", "text", "value"),
    [
        (Int(), " +5 ", 5),
        (Short(), "-32768", -32768),
        (Long(), "9223372036854775807", 2**63 - 1),
        (Float(), "1e3", 1000.0),
        (Bool(), "TRUE", True),
        (Text(), " a ", "a"),
        (Text(optional=True), "", None),
        (one_of("a", fold_case=True), "A", "a"),
        (OneOf({"all": -1}, {"-1": "all"}), "-1", -1),
        (ListOf(may_be_empty=True), "", ()),
        (ListOf(), "a, b", ("a", "b")),
        (ListOf(("a",), {"x": "a"}), "x", ("a",)),
        (ListOf(may_repeat=True, skip_empty_items=True), "a,,a,", ("a", "a")),
        (Duration(), "2 Minutes", 120_000),
        (Duration(), "5ms", 5),
        (Json("{}"), '{"a": 1}', {"a": 1}),
        (Custom("digits", int), "7", 7),
    ],
)
def test_a_text_becomes_a_final_value(values: ValueType, text: str, value: Any) -> None:
    assert make(values).parse(text) == value


@pytest.mark.parametrize(
    ("values", "text", "reason"),
    [
        (Int(1), "0", "it must be a whole number of at least 1"),
        (Int(1), "2147483648", "it must be a whole number from 1 to 2147483647"),
        (Short(), "-32769", "it must be a whole number from -32768 to 32767"),
        (Long(), "1_000", "it must be a whole number"),
        (Float(0.0, 1.0), "nan", "it must be a number from 0.0 to 1.0"),
        (Bool(), "tru", "it must be true or false; did you mean true?"),
        (Text(may_be_blank=False), "", "it must be text"),
        (one_of("gzip", "zstd"), "ztsd", "it must be one of gzip, zstd; did you mean zstd?"),
        (ListOf(), "a,,b", "the list is empty or has an empty item"),
        (ListOf(), "a,a", "'a' is given twice"),
        (ListOf(("gzip",)), "gzp", "'gzp' is not one of gzip; did you mean gzip?"),
        (Duration(), "1 fortnight", "write it as 30s, 15m or 1h"),
        (Duration(), "soon", "write it as 30s, 15m or 1h"),
        (Json('{"a": 1}'), "[1]", 'write it as {"a": 1}'),
        (Json('{"a": 1}'), "{", 'write it as {"a": 1}'),
    ],
)
def test_a_refused_text_is_told_what_is_allowed(values: ValueType, text: str, reason: str) -> None:
    assert refusal(lambda: make(values).parse(text)) == f"o cannot be {text!r}: {reason}"


@pytest.mark.parametrize(
    ("values", "bad"),
    [(Int(), True), (Int(), 1.5), (Float(), "1"), (Bool(), "true"), (Text(), 1), (ListOf(), 5)],
)
def test_a_python_value_of_another_type_is_refused(values: ValueType, bad: Any) -> None:
    reason = f"it must be {values.allowed_value}"
    assert refusal(lambda: make(values).check(bad)) == f"o cannot be {bad!r}: {reason}"


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_formatted_number_parses_back(number: int) -> None:
    option = make(Long())
    assert option.parse(option.format(number) or "") == number


def test_a_converted_value_is_checked_first() -> None:
    option = make(ListOf(), convert=len)
    assert option.parse("a,b") == 2
    assert "given twice" in refusal(lambda: option.parse("a,a"))


def test_a_secret_is_not_told() -> None:
    option = make(Password(), sensitive=True, convert=lambda _: int("x", 0))
    assert "hunter2" not in refusal(lambda: option.parse("hunter2"))


def table(**rest: Any) -> OptionTable:
    options = (
        make(Int(0), 5, name="linger_ms", kafka_name="linger.ms", aliases=("linger",)),
        make(OneOf({"all": -1}), "all", name="acks"),
        make(Text(), None, name="rack"),
    )
    return OptionTable(options, owner="Duck", **rest)


def test_a_table_knows_every_option_and_which_were_given() -> None:
    values, names = table().check({"linger": 7})
    assert values == {"linger_ms": 7, "acks": -1, "rack": None}
    assert names == {"linger_ms"}
    assert table().parse({"linger.ms": "7", "acks": "all"}).values == values
    assert list(table()) == ["linger_ms", "acks", "rack"]


def test_properties_become_what_a_user_would_write() -> None:
    assert table().arguments({"acks": "all", "linger.ms": "7"}) == {"acks": "all", "linger_ms": 7}


def test_names_in_any_case() -> None:
    assert table().parse({"LINGER.MS": "7"}, fold_case=True).values["linger_ms"] == 7


def test_an_option_is_given_once_and_as_text() -> None:
    twice = refusal(lambda: table().check({"linger": 1, "linger_ms": 1}))
    assert twice == "linger_ms is given twice, once as linger_ms"
    properties: Any = {"linger.ms": "1", "linger": "1"}
    twice = refusal(lambda: table().parse(properties))
    assert twice == "linger.ms is given twice, once as linger"
    number: Any = {"linger.ms": 1}
    assert "a property's value is text" in refusal(lambda: table().parse(number))


def test_an_unknown_name_is_answered_with_the_likely_one_or_the_page() -> None:
    unknown = refusal(lambda: table(docs="docs/ducks.md").check({"lingerMs2": 1}))
    assert unknown == "unknown option 'lingerMs2' of Duck; did you mean linger_ms?"
    unknown = refusal(lambda: table(docs="docs/ducks.md").check({"zebra": 1}))
    assert unknown == "unknown option 'zebra' of Duck; docs/ducks.md lists them all"


@pytest.mark.parametrize("name", ["sasl_mechanism", "sasl.mechanism", "saslMechanism"])
def test_a_refused_name_is_answered_with_the_reason(name: str) -> None:
    refusing = table(refused={"sasl_*": "ducks trust everybody"})
    reason = "is no option of Duck: ducks trust everybody"
    assert refusal(lambda: refusing.check({name: 1})) == f"{name} {reason}"
    assert refusal(lambda: refusing.refuse(name)) == f"{name} {reason}"
    refusing.refuse("mechanism")


def test_a_table_may_have_errors_of_its_own() -> None:
    own = table(error=DuckError, label="option ")
    assert refusal(lambda: own.parse({"linger.ms": "x"}), DuckError).startswith("option linger.ms ")
    assert refusal(lambda: own.parse({"liner": "x"}), DuckError).startswith("unknown option")


def test_the_nearest_name_ignores_case_and_separators() -> None:
    assert nearest("BATCHSIZE", ["linger_ms", "batch_size"]) == "batch_size"
    assert nearest("zebra", ["linger_ms", "batch_size"]) is None
    assert suggestion("retention.msec", ["retention.ms"]) == "; did you mean retention.ms?"
    assert NotAllowed("near").nearest == "near"
