"""A small OpenID provider for tests: real HTTP, real signatures, PKCE checked, errors on demand."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.integration.security.sasl_nodes import AUDIENCE, TokenIssuer

CLIENT_ID, CLIENT_SECRET = "headrace-console", "the secret of the console"


@dataclass
class OidcTestProvider:
    """The provider: who signs in next, and what is wrong with the tokens that come of it."""

    tokens: TokenIssuer
    url: str = ""
    user: str = "admin"
    # Claims that replace those of the ID token, and of the access token.
    id_claims: dict[str, Any] = field(default_factory=dict)
    access_claims: dict[str, Any] = field(default_factory=dict)
    life_s: int = 300
    signs_with: TokenIssuer | None = None
    refreshes: int = 0
    gives_refresh_tokens: bool = False
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        return {"issuer": self.url, **{name: f"{self.url}/{name}" for name in names}}

    def authorize(self, query: dict[str, str]) -> str:
        """The address that a browser is sent back to, with a code."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT_ID
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe()
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """Tokens for a code or a refresh token; None if the request is wrong."""
        expected = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {expected}":
            return None
        if form["grant_type"] == "refresh_token":
            self.refreshes += 1
            return self._tokens("") if form["refresh_token"] == "refresh" else None
        begun = self.codes.pop(form["code"], None)
        if begun is None or begun["redirect_uri"] != form["redirect_uri"]:
            return None
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != begun["code_challenge"]:
            return None
        return self._tokens(begun["nonce"])

    def _tokens(self, nonce: str) -> dict[str, Any]:
        issuer = self.signs_with or self.tokens
        known = {"iss": self.url, "aud": CLIENT_ID, "nonce": nonce, "iat": time.time()}
        access = {"iss": self.url, "aud": AUDIENCE, **self.access_claims}
        found = {
            "access_token": self.tokens.token(self.user, lasts_s=self.life_s, **access),
            "id_token": issuer.token(self.user, **{**known, **self.id_claims}),
            "token_type": "Bearer",
            "expires_in": self.life_s,
        }
        return {**found, "refresh_token": "refresh"} if self.gives_refresh_tokens else found


@contextmanager
def oidc_provider(tokens: TokenIssuer) -> Iterator[OidcTestProvider]:
    """A provider that runs on loopback."""
    provider = OidcTestProvider(tokens)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorization_endpoint":
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("Location", provider.authorize(query))
                self.end_headers()
            elif parts.path == "/.well-known/openid-configuration":
                self._answer(200, provider.metadata())
            else:
                self._answer(200, {"keys": [tokens.public_key()]})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            found = provider.exchange(form, self.headers.get("Authorization", ""))
            self._answer(200 if found else 400, found or {"error": "invalid_grant"})

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
