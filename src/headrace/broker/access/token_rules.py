"""Access rules of the APIs about delegation tokens.

Their handlers ask for the rights: which are needed depends on whose a token is.
"""

from headrace.broker.access.rules import LEFT_OUT, AccessRule, right
from headrace.security.acls import AclOperation, AclResourceType

_USER, _TOKEN = AclResourceType.USER, AclResourceType.DELEGATION_TOKEN

CREATE = AccessRule(
    (right(AclOperation.CREATE_TOKENS, _USER, note="for a token of another owner"),)
)
DESCRIBE = AccessRule(
    (
        right(
            AclOperation.DESCRIBE,
            _TOKEN,
            LEFT_OUT,
            "for tokens that the sender neither owns nor requested, and may not renew",
            instead=(AclOperation.DESCRIBE_TOKENS, _USER),
        ),
    )
)
