"""Names that the parts of a role have in the metadata and on the wire.

A role `analysts` is a config resource of a type of headrace's own. Its rights are the ACLs of the
principal `Role:analysts`, its members settings such as `member:User:alice`.
"""

ROLE_KIND = "Role"
GROUP_KIND = "Group"
USER_KIND = "User"

DESCRIPTION = "description"
MEMBER_PREFIX = "member:"
