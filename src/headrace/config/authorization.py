"""Settings of the authorizer, and of the audit log of its decisions."""

from dataclasses import dataclass

from headrace.config.topic import MIB
from headrace.options import Bool, Int, Long, Text, one_of, setting

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
AUDIT_LEVELS = ("denied", "all")


def _check_authorizer(value: str) -> str:
    if value not in ("", AUTHORIZER):
        raise ValueError(f"headrace cannot run Java classes; the authorizer is {AUTHORIZER}")
    return value


def parse_super_users(text: str) -> tuple[str, ...]:
    """The principals of `super.users`, which are separated by semicolons as in Kafka."""
    users = tuple(user.strip() for user in text.split(";") if user.strip())
    for user in users:
        kind, colon, name = user.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{user!r} is no principal; write User:alice;User:bob")
    return users


def _check_super_users(text: str) -> str:
    parse_super_users(text)
    return text


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class AuthorizationConfig:
    """Settings of the authorizer and of its audit log."""

    authorizer_class_name: str = setting(
        Text(),
        "",
        convert=_check_authorizer,
        doc=f"`{AUTHORIZER}` has every request judged by access control lists (ACLs). Set it, and"
        " `super.users`, alike on every node; without it everybody may do everything.",
    )
    super_users: str = setting(
        Text(),
        "",
        convert=_check_super_users,
        doc="Principals that may do everything, as `User:admin;User:broker`. The principals of the"
        " nodes themselves belong here: they are judged before ACLs are known.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        Bool(),
        False,
        doc="Whether everybody may use a resource that no ACL names at all.",
    )
    audit_log_path: str = setting(
        Text(),
        "",
        doc="A file for the authorizer's decisions, one JSON object in a line; none without it. It"
        " is readable by its owner only. The broker opens it again when it was moved away.",
    )
    audit_log_decisions: str = setting(
        one_of(*AUDIT_LEVELS),
        "denied",
        doc="The decisions in the audit log: what was `denied`, or `all`.",
    )
    audit_log_max_per_second: int = setting(
        Int(1),
        1000,
        doc="Decisions that the audit log takes in a second. Of more than that only the number is"
        " noted, so that a client in a loop cannot fill the disk.",
    )
    audit_log_max_bytes: int = setting(
        Long(MIB),
        100 * MIB,
        doc="Bytes after which the audit log is renamed, with `.1` at its end, and begun anew. An"
        " older one of that name is overwritten.",
    )
