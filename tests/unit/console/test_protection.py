"""Hosts by which the console may be asked for."""

import pytest

from headrace.console.protection import AllowedHosts
from headrace.console.rendering import duration_text, environment


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:9080", True),
        ("LOCALHOST", True),
        ("127.0.0.1:9080", True),
        ("[::1]:9080", True),
        ("10.1.2.3", True),
        ("console.example.com:443", True),
        ("console.example.com.", True),
        ("console.example.com.evil.example", False),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_only_addresses_and_known_names_are_served(host: str, allowed: bool) -> None:
    assert AllowedHosts(("console.example.com",)).allows(host) is allowed


def test_whatever_a_template_puts_out_is_escaped_and_visible() -> None:
    template = environment().from_string('<a title="{{ text }}">{{ text }}</a>{{ nothing }}')
    shown = template.render(text='"><script>\u202e\x1b', nothing=None)
    assert shown == (
        '<a title="&#34;&gt;&lt;script&gt;\\u202e\\x1b">&#34;&gt;&lt;script&gt;\\u202e\\x1b</a>'
    )
    kept = environment().from_string("{{ text|verbatim }}").render(text="<\u202e")
    assert kept == "&lt;\u202e"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (3.94, "3.9 s"),
        (61, "1 min 1 s"),
        (7200, "2 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_time_spans_have_their_two_largest_units(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text
