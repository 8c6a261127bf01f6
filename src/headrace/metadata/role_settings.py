"""Roles: named sets of rights, and the principals and groups that they are bound to.

The rights of a role are ordinary ACLs of the principal `Role:<name>`, so that Kafka's tools list,
add and remove them. That a role exists, and who its members are, are settings of a resource of our
own type, ROLE: `description`, and one `member:<principal>` for each member, such as
`member:User:alice` or `member:Group:analysts` for a group that a token claims.
"""

from collections.abc import Mapping

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import ConfigKey, ConfigResourceType
from headrace.security.acl_authorizer import RolesOfMembers
from headrace.security.acls import DESCRIPTION, GROUP_KIND, MEMBER_PREFIX, USER_KIND

_NAME_MAX = 249
_NAME_SIGNS = frozenset("._-")


def roles_of_members(configs: Mapping[ConfigKey, Mapping[str, str]]) -> RolesOfMembers:
    """The names of the roles of every member, by its principal."""
    roles: dict[str, list[str]] = {}
    for resource, settings in configs.items():
        if resource.resource_type == ConfigResourceType.ROLE:
            for name in settings:
                if name.startswith(MEMBER_PREFIX):
                    member = name.removeprefix(MEMBER_PREFIX)
                    roles.setdefault(member, []).append(resource.name)
    return {member: tuple(sorted(names)) for member, names in roles.items()}


def check_role_changes(
    name: str, current: Mapping[str, str], changes: Mapping[str, str | None]
) -> None:
    """INVALID_REQUEST or INVALID_CONFIG if a role cannot be changed so.

    Its description makes a role: members come after it, and go before it.
    """
    if (
        not name
        or len(name) > _NAME_MAX
        or not all(sign.isalnum() or sign in _NAME_SIGNS for sign in name)
    ):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{name!r} is no name of a role",
            advice="use letters, digits, '.', '_' and '-'",
        )
    for setting, value in changes.items():
        if setting == DESCRIPTION:
            continue
        if not setting.startswith(MEMBER_PREFIX):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"a role has no setting {setting!r}",
                advice=f"use {DESCRIPTION!r} or '{MEMBER_PREFIX}User:alice'",
            )
        if value is not None:
            _check_member(setting.removeprefix(MEMBER_PREFIX))
    after = {**current, **changes}
    has_members = any(
        value is not None for setting, value in after.items() if setting != DESCRIPTION
    )
    if has_members and after.get(DESCRIPTION) is None:
        missing = DESCRIPTION not in current
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"there is no role {name!r}; create it first"
            if missing
            else f"the role {name!r} still has members; unbind them first",
        )


def _check_member(member: str) -> None:
    kind, _, name = member.partition(":")
    if kind not in (USER_KIND, GROUP_KIND) or not name:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{member!r} cannot be a member of a role",
            advice="write User:alice or Group:analysts",
        )
