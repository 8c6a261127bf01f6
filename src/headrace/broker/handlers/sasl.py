"""SaslHandshake and SaslAuthenticate: the login of a connection, where its listener has SASL."""

from collections.abc import Awaitable

from headrace.broker.authentication import SaslSession
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handshake(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    session = _session(context)
    if session is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return session.handshake(request.mechanism, context.version)


def authenticate(
    context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Awaitable[SaslAuthenticateResponse]:
    session = _session(context)
    if session is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="this listener has no SASL; use security.protocol=PLAINTEXT or SSL",
        )
    return session.authenticate(bytes(request.auth_bytes))


def _session(context: RequestContext) -> SaslSession | None:
    """The login of the connection; None at a listener without SASL."""
    session = None if context.connection is None else context.connection.login
    return session if isinstance(session, SaslSession) else None
