"""The sender of a request, as an envelope carries it to the controller."""

from headrace.protocol.schema import (
    Message,
    array,
    boolean,
    string,
)


class DefaultPrincipalData(Message, versions=(0, 0), flexible_from=0):
    type: str = string(default="")
    name: str = string(default="")
    token_authenticated: bool = boolean(default=False)
    # Of headrace: the groups that a token claims, to which roles may be bound.
    groups: list[str] = array(string, tag=10_000, default=...)
