import pytest

from headrace.errors import ConfigError
from headrace.net.addresses import Address, parse_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("a:1, b:2 ,c", [Address("a", 1), Address("b", 2), Address("c", 9092)]),
        ("[::1]:9093", [Address("::1", 9093)]),
        ("[fe80::1%eth0]", [Address("fe80::1%eth0", 9092)]),
    ],
)
def test_addresses_are_read_from_a_list(text: str, expected: list[Address]) -> None:
    assert list(parse_addresses(text)) == expected


@pytest.mark.parametrize("text", ["", " , ", "host:", "host:0", "host:70000", "a b:1", "::1:9092"])
def test_a_wrong_address_is_refused_with_the_form_it_should_have(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_addresses(text)


def test_an_address_prints_as_it_is_written() -> None:
    assert [str(address) for address in parse_addresses("h:1,[::1]:2")] == ["h:1", "[::1]:2"]
