"""Rules from names in certificates to names of users, as Kafka has them."""

import pytest

from headrace.errors import ConfigError
from headrace.security.authorization import ANONYMOUS
from headrace.security.principal_mapping import NoRuleMatches, PrincipalMapping

NAME = "CN=Alice,OU=Sales,O=Example,C=DE"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),.*$/$1/", "Alice"),
        ("RULE:^CN=(.*?),.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "ALICE@SALES"),
        (
            "RULE:^CN=(.*?),OU=Service.*$/$1/ , RULE:^CN=([^,]*),O.*$/user $1/, DEFAULT",
            "user Alice",
        ),
        ("RULE:^UID=(.*?)$/$1/,DEFAULT", NAME),
        ("RULE:CN=(\\w+),.*/a\\/$1/", "a/Alice"),
        # A pattern must match all of the name.
        ("RULE:CN=Alice/x/,DEFAULT", NAME),
    ],
)
def test_the_first_rule_that_matches_counts(rules: str, user: str) -> None:
    assert PrincipalMapping(rules).user_of(NAME) == user


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(NoRuleMatches, match="CN=Alice"):
        PrincipalMapping("RULE:^UID=(.*)$/$1/").user_of(NAME)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("RULE:^CN=(.*)$", "write RULE:pattern/replacement/"),
        ("RULE:^CN=(.*)$/$1/X", "write RULE:pattern/replacement/"),
        ("ALL", "write RULE:pattern/replacement/"),
        ("RULE:^CN=(.*$/$1/", "whose pattern is wrong"),
        ("RULE:^CN=.*$/$1/", "whose replacement has \\$1"),
        ("RULE:(?=CN)/x/", "whose pattern is wrong"),
    ],
)
def test_a_wrong_rule_is_explained(rules: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PrincipalMapping(rules)


def test_a_client_without_a_certificate_is_nobody() -> None:
    assert PrincipalMapping("DEFAULT").principal_of(None) == ANONYMOUS
