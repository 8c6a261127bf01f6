"""Sign-in to the console by OpenID Connect: a provider, brokers that take its tokens, a browser."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

import pytest
from playwright.sync_api import Browser

from headrace import Admin
from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterConnection
from headrace.console.oidc_settings import OidcSettings
from headrace.errors import ConfigError
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.console.http_viewer import HttpViewer, Page
from tests.integration.console.oidc_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    OidcTestProvider,
    oidc_provider,
)
from tests.integration.console.watched_pages import RunningConsole
from tests.integration.security.sasl_nodes import AUDIENCE, TokenIssuer, sasl_node


class Shown:
    """A console that shows a cluster to whom the provider says they are."""

    def __init__(self, console: RunningConsole, provider: OidcTestProvider, address: str) -> None:
        self.console = console
        self.provider = provider
        self.address = address


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Brokers that take the provider's tokens alone; admin may do everything, others nothing."""
    directory = tmp_path_factory.mktemp("oidc")
    issuer = TokenIssuer(directory)
    with ExitStack() as stack:
        provider = stack.enter_context(oidc_provider(issuer))
        settings = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": issuer.url,
            "sasl.oauthbearer.expected.issuer": provider.url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.clock.skew.seconds": "0",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
            "connection.failed.authentication.delay.ms": "20",
        }
        listeners = {"CLIENTS": "SASL_PLAINTEXT", "NODES": "PLAINTEXT"}
        settings["inter.broker.listener.name"] = "NODES"
        node = stack.enter_context(sasl_node(directory, settings, listeners))
        with Admin(bootstrap_servers=node.addresses["NODES"]) as admin:
            admin.create_topic("orders", 1, 1)
        connection = ClusterConnection(
            node.addresses["CLIENTS"],
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
        )
        console = stack.enter_context(
            RunningConsole(
                ConsoleSettings(
                    connection,
                    signs_in=True,
                    interval_s=0.2,
                    oidc=OidcSettings(provider.url, CLIENT_ID, CLIENT_SECRET),
                )
            )
        )
        yield Shown(console, provider, node.addresses["CLIENTS"])


@pytest.fixture(autouse=True)
def well(shown: Shown) -> None:
    """A provider with nothing wrong, whatever the test before had it do."""
    provider = shown.provider
    provider.user, provider.life_s = "admin", 300
    provider.id_claims, provider.access_claims = {}, {}
    provider.signs_with, provider.gives_refresh_tokens = None, False


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def sent_back(viewer: HttpViewer, there: str = "/topics") -> str:
    """Begin a sign-in, and go through the pages of the provider; the path it leads to."""
    begun = viewer.get(f"/oidc/begin?{urlencode({'next': there})}")
    assert begun.status == 303
    try:
        build_opener(_NoRedirects).open(begun.location, timeout=scaled(10))
    except OSError as answer:
        parts = urlsplit(answer.headers["Location"])  # type: ignore[attr-defined]
        return f"{parts.path}?{parts.query}"
    raise AssertionError("the provider sent nobody back")


def signed_in(shown: Shown) -> tuple[HttpViewer, Page]:
    """A viewer who went to the provider and came back, and the answer of the console."""
    viewer = shown.console.viewer()
    return viewer, viewer.get(sent_back(viewer))


def test_a_browser_signs_in_at_the_provider_and_comes_back(browser: Browser, shown: Shown) -> None:
    context = browser.new_context()
    context.set_default_timeout(scaled(15) * 1000)
    page = context.new_page()
    page.goto(f"{shown.console.url}/topics?q=ord")
    page.get_by_role("link", name="Sign in with").click()
    page.wait_for_url("**/topics?q=ord")
    page.get_by_role("link", name="orders").wait_for()
    assert page.locator(".viewer").inner_text().startswith("admin")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("link", name="Sign in with").wait_for()
    context.close()


def test_rights_are_those_of_the_user_in_the_token(shown: Shown) -> None:
    shown.provider.user = "alice"
    viewer, answer = signed_in(shown)
    assert answer.status == 200
    assert "alice" in viewer.get("/").words
    refused = viewer.submit("/new-topic", {"name": "made", "partitions": "1"})
    assert "authoriz" in refused.words.lower()


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"aud": "another client"},
        {"aud": None},
        {"iss": "https://elsewhere.example"},
        {"exp": time.time() - 3600},
        {"exp": None},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
    ],
    ids=str,
)
def test_a_wrong_id_token_is_refused(shown: Shown, claims: dict[str, Any]) -> None:
    shown.provider.id_claims = claims
    viewer, answer = signed_in(shown)
    assert (answer.status, viewer.get("/").status) == (401, 303)
    assert "ID token is not good for it" in answer.words


def test_an_id_token_of_another_key_is_refused(shown: Shown, tmp_path: Path) -> None:
    shown.provider.signs_with = TokenIssuer(tmp_path)
    _, answer = signed_in(shown)
    assert answer.status == 401


def test_a_callback_counts_for_the_browser_that_began_it_and_once(shown: Shown) -> None:
    viewer = shown.console.viewer()
    path = sent_back(viewer)
    # Another browser, with the cookie of a sign-in of its own or with none.
    stranger = shown.console.viewer()
    assert stranger.get(path).status == 401
    sent_back(stranger)
    assert stranger.get(path).status == 401
    query = parse_qs(urlsplit(path).query)
    forged = {"code": query["code"][0], "state": "guessed"}
    victim = HttpViewer(viewer.url, dict(viewer.cookies))
    assert victim.get(f"/oidc/callback?{urlencode(forged)}").status == 401
    kept = dict(viewer.cookies)
    assert viewer.get(path).status == 200
    assert "admin" in viewer.get("/").words
    assert HttpViewer(viewer.url, kept).get(path).status == 401


def test_the_brokers_decide_about_the_token(shown: Shown) -> None:
    shown.provider.access_claims = {"aud": "another service"}
    viewer, answer = signed_in(shown)
    assert (answer.status, viewer.get("/").status) == (401, 303)
    assert "do not take the token of this provider" in answer.words


def test_a_session_lasts_as_long_as_its_token(shown: Shown) -> None:
    shown.provider.life_s = 3
    viewer, answer = signed_in(shown)
    assert answer.status == 200
    wait_until(lambda: viewer.get("/").status == 303, 30, "the session outlived its token")
    # With a refresh token the token is renewed, at once where it is this short-lived.
    shown.provider.gives_refresh_tokens = True
    before = shown.provider.refreshes
    viewer, _ = signed_in(shown)
    wait_until(lambda: shown.provider.refreshes > before, 30, "the token was not renewed")
    assert viewer.get("/").status == 200


def test_the_sign_in_leads_to_pages_of_the_console_only(shown: Shown) -> None:
    viewer = shown.console.viewer()
    answer = viewer.get(sent_back(viewer, "//evil.example/"))
    assert "evil" not in answer.text
    refused = viewer.get("/oidc/callback?error=access_denied&state=x")
    assert refused.status == 401


@pytest.mark.parametrize("issuer", ["http://login.example.com", "login.example.com", ""])
def test_an_issuer_that_anybody_could_read_is_refused(issuer: str) -> None:
    with pytest.raises(ConfigError, match="no https URL"):
        OidcSettings(issuer, CLIENT_ID)
