"""Tables of the SaslHandshake API."""

from headrace.protocol.schema import (
    Message,
    array,
    int16,
    string,
)


class SaslHandshakeRequest(Message, api_key=17, versions=(0, 1)):
    mechanism: str = string(default="")


class SaslHandshakeResponse(Message, api_key=17, versions=(0, 1)):
    error_code: int = int16(default=0)
    mechanisms: list[str] = array(string, default=...)
