"""Sign-in by OpenID Connect: the authorization code flow with PKCE, and the tokens of a viewer.

Rule: nothing of a callback is believed before its state is that of the sign-in which this browser
began, and nothing of an ID token before its signature, issuer, audience, time and nonce are right.
Authlib does the exchanges with the provider, joserfc the signatures.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from headrace.clock import Clock
from headrace.console.errors import RequestRefused
from headrace.console.oidc_settings import STARTED_S_MAX, OidcSettings, is_safe_url
from headrace.errors import AuthenticationFailed

logger = logging.getLogger(__name__)

# Only signatures with a key pair: a client secret is shared, and `none` is no signature.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
_LEEWAY_S = 30
_TIMEOUT_S = (5, 10)
_DOCUMENT_BYTES_MAX = 1024 * 1024
_METADATA_S = 3600.0
_KEYS_S = 10.0
# A token is renewed when it has less than this left.
_RENEWAL_S = 60.0
_LIFE_S_DEFAULT = 300.0
_NAME_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class StartedSignIn:
    """A sign-in that a browser has begun: what its callback has to fit to."""

    state: str
    nonce: str
    verifier: str = field(repr=False)
    there: str
    redirect_uri: str
    until_s: float


class StartedSignIns:
    """Started sign-ins as text for a cookie, which nobody else can make and which grows old.

    They are in the browser and not here, so that strangers who begin many take no place of others.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def text_of(self, started: StartedSignIn) -> str:
        """The text of a sign-in."""
        body = base64.urlsafe_b64encode(json.dumps(asdict(started)).encode()).decode()
        return f"{body}.{self._signature(body)}"

    def read(self, text: str, now_s: float) -> StartedSignIn | None:
        """The sign-in of a text; None if it is not ours, or too old."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(self._signature(body).encode(), signature.encode()):
            return None
        started = StartedSignIn(**json.loads(base64.urlsafe_b64decode(body)))
        return started if now_s < started.until_s else None

    def _signature(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


class ViewerTokens:
    """The tokens of a viewer: given to every login at the brokers, and renewed if they can be."""

    def __init__(
        self, provider: "OidcProvider", tokens: Mapping[str, Any], name: str, clock: Clock
    ) -> None:
        self.name = name
        self._provider = provider
        self._clock = clock
        self._lock = asyncio.Lock()
        self._refresh_token = ""
        self._take(tokens)

    def __repr__(self) -> str:
        return f"<ViewerTokens of {self.name!r}>"

    @property
    def is_renewable(self) -> bool:
        """Whether the provider gave a refresh token."""
        return bool(self._refresh_token)

    @property
    def life_s(self) -> float:
        """How long the present token is good for."""
        return max(self._until_s - self._clock.monotonic(), 0.0)

    async def __call__(self) -> tuple[str, float]:
        """The token for a login, and when it expires; the provider of OAUTHBEARER's clients."""
        async with self._lock:
            if self.life_s < _RENEWAL_S and self._refresh_token:
                self._take(await self._provider.renewed(self._refresh_token))
            if self.life_s <= 0:
                raise AuthenticationFailed("the token of this sign-in has expired")
            return self._token, time.time() + self.life_s

    def _take(self, tokens: Mapping[str, Any]) -> None:
        self._token: str = tokens[self._provider.settings.token]
        # A provider may give a new one at each renewal, or leave the old one good.
        self._refresh_token = str(tokens.get("refresh_token") or self._refresh_token)
        try:
            life_s = float(tokens.get("expires_in") or _LIFE_S_DEFAULT)
        except (TypeError, ValueError):
            life_s = _LIFE_S_DEFAULT
        self._until_s = self._clock.monotonic() + life_s


class OidcProvider:
    """The provider of the settings: its metadata and keys, and the exchanges with it.

    Exchanges run on threads, since Authlib's session waits for its answers.
    """

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        self.settings = settings
        self.started = StartedSignIns()
        self._clock = clock
        self._metadata: dict[str, Any] = {}
        self._metadata_s = -_METADATA_S
        self._keys = KeySet([])
        self._keys_s = -_METADATA_S

    async def begin(self, redirect_uri: str, there: str) -> tuple[str, str]:
        """A sign-in: the provider's address for the browser, and the text of its cookie."""
        started = StartedSignIn(
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(48),
            there,
            redirect_uri,
            self._clock.monotonic() + STARTED_S_MAX,
        )
        metadata = await asyncio.to_thread(self._read_metadata)
        with self._session(redirect_uri) as session:
            url, _ = session.create_authorization_url(
                metadata["authorization_endpoint"],
                state=started.state,
                nonce=started.nonce,
                code_verifier=started.verifier,
            )
        return url, self.started.text_of(started)

    async def finish(self, query: Mapping[str, str], cookie: str) -> tuple[ViewerTokens, str]:
        """The tokens of a viewer who comes back, and the page to go to; else RequestRefused."""
        started = self.started.read(cookie, self._clock.monotonic())
        if started is None:
            raise _refusal("this browser has not begun it, or too long ago")
        if not hmac.compare_digest(started.state.encode(), query.get("state", "").encode()):
            raise _refusal("its state is not that of this browser")
        if "iss" in query and query["iss"] != self.settings.issuer:
            raise _refusal("another provider has answered")
        if query.get("error"):
            raise _refusal(f"the provider says {query['error'][:_NAME_CHARS_MAX]}")
        if not query.get("code"):
            raise _refusal("the provider gave no code")
        tokens, claims = await asyncio.to_thread(self._exchange, started, query["code"])
        name = str(claims.get("preferred_username") or claims["sub"])[:_NAME_CHARS_MAX]
        return ViewerTokens(self, tokens, name, self._clock), started.there

    async def renewed(self, refresh_token: str) -> Mapping[str, Any]:
        """New tokens for a refresh token; AuthenticationFailed if the provider gives none."""
        return await asyncio.to_thread(self._renewed, refresh_token)

    # -- on threads

    def _exchange(
        self, started: StartedSignIn, code: str
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        metadata = self._read_metadata()
        try:
            with self._session(started.redirect_uri) as session:
                tokens = session.fetch_token(
                    metadata["token_endpoint"],
                    code=code,
                    code_verifier=started.verifier,
                    timeout=_TIMEOUT_S,
                    allow_redirects=False,
                )
        except (AuthlibBaseError, requests.RequestException, ValueError) as error:
            raise _refusal("the provider took its code back", error) from None
        for token in ("id_token", self.settings.token):
            if not isinstance(tokens.get(token), str):
                raise _refusal(f"the provider gave no {token}")
        return tokens, self._claims(tokens["id_token"], started.nonce, metadata)

    def _renewed(self, refresh_token: str) -> Mapping[str, Any]:
        try:
            metadata = self._read_metadata()
            with self._session("") as session:
                tokens: Mapping[str, Any] = session.refresh_token(
                    metadata["token_endpoint"],
                    refresh_token=refresh_token,
                    timeout=_TIMEOUT_S,
                    allow_redirects=False,
                )
        except (AuthlibBaseError, requests.RequestException, ValueError, RequestRefused) as error:
            logger.warning("a token could not be renewed: %s", type(error).__name__)
            raise AuthenticationFailed("the provider does not renew the token") from None
        if not isinstance(tokens.get(self.settings.token), str):
            raise AuthenticationFailed(f"the provider renewed no {self.settings.token}")
        return tokens

    def _claims(self, token: str, nonce: str, metadata: Mapping[str, Any]) -> CodeIDToken:
        """The claims of an ID token that is good for this sign-in."""
        try:
            decoded = self._verified(token, metadata)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={
                    "iss": {"essential": True, "value": self.settings.issuer},
                    "aud": {"essential": True, "value": self.settings.client_id},
                },
                params={"nonce": nonce, "client_id": self.settings.client_id},
            )
            claims.validate(leeway=_LEEWAY_S)
        except (AuthlibBaseError, JoseError, ValueError, TypeError) as error:
            raise _refusal("its ID token is not good for it", error) from None
        # The library compares a nonce only if the token has one.
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _refusal("its ID token is not good for it: another nonce")
        return claims

    def _verified(self, token: str, metadata: Mapping[str, Any]) -> jwt.Token:
        """The token with its signature checked; keys are read anew if none fits."""
        try:
            return jwt.decode(token, self._keys, algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            now_s = self._clock.monotonic()
            if now_s - self._keys_s < _KEYS_S and self._keys.keys:
                raise
            document: Any = self._document(metadata["jwks_uri"])
            self._keys = KeySet.import_key_set(document)
            self._keys_s = now_s
            return jwt.decode(token, self._keys, algorithms=ALGORITHMS)

    def _read_metadata(self) -> dict[str, Any]:
        """The metadata of the provider, an hour old at most."""
        now_s = self._clock.monotonic()
        if now_s - self._metadata_s < _METADATA_S:
            return self._metadata
        issuer = self.settings.issuer
        found = self._document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise _unusable(issuer, "its metadata is of another issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe_url(str(found.get(name, ""))):
                raise _unusable(issuer, f"its {name} is missing, or not https")
        self._metadata, self._metadata_s = found, now_s
        return found

    def _document(self, url: str) -> dict[str, Any]:
        try:
            with requests.get(
                url,
                timeout=_TIMEOUT_S,
                verify=self.settings.ca_file or True,
                allow_redirects=False,
                stream=True,
            ) as answer:
                answer.raise_for_status()
                body = answer.raw.read(_DOCUMENT_BYTES_MAX, decode_content=True)
            document = json.loads(body)
        except (requests.RequestException, OSError, ValueError) as error:
            raise _unusable(
                self.settings.issuer, f"{urlsplit(url).path} cannot be read", error
            ) from None
        if not isinstance(document, dict):
            raise _unusable(self.settings.issuer, f"{urlsplit(url).path} is no JSON object")
        return document

    def _session(self, redirect_uri: str) -> OAuth2Session:
        secret = self.settings.client_secret
        session = OAuth2Session(
            self.settings.client_id,
            secret,
            scope=" ".join(self.settings.scopes),
            redirect_uri=redirect_uri or None,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
        )
        session.verify = self.settings.ca_file or True
        return session


def _refusal(why: str, error: BaseException | None = None) -> RequestRefused:
    detail = f" ({type(error).__name__})" if error else ""
    logger.warning("a sign-in by OpenID Connect was refused: %s%s", why, detail)
    return RequestRefused(401, f"the sign-in is not valid: {why}", advice="begin it again")


def _unusable(issuer: str, why: str, error: BaseException | None = None) -> RequestRefused:
    detail = f" ({type(error).__name__})" if error else ""
    logger.warning("the OpenID provider %s cannot be used: %s%s", issuer, why, detail)
    return RequestRefused(
        503, f"the OpenID provider {issuer} cannot be used: {why}", advice="try again later"
    )
