"""The authorizer of a node: made from its settings, and renewed with every image.

Until the metadata is known only super users have rights: a rule that denies may be in it.
"""

import logging

from headrace.broker.audit_log import AuditLog, AuditSettings
from headrace.broker.node import Node
from headrace.config.authorization import parse_super_users
from headrace.metadata.image import Image
from headrace.metadata.role_settings import roles_of_members
from headrace.security.acl_authorizer import AclAuthorizer, AclPolicy
from headrace.storage.files import Files
from headrace.types import SecurityProtocol

logger = logging.getLogger(__name__)


def start_authorizer(node: Node, files: Files) -> None:
    """Give a node the authorizer and the audit log that its settings ask for, if any."""
    config = node.config
    if not config.authorizer_class_name:
        return
    super_users = frozenset(parse_super_users(config.super_users))
    policy = AclPolicy(super_users, config.allow_everyone_if_no_acl_found)
    node.authorizer = AclAuthorizer(policy)
    plain = [
        listener.name
        for listener in config.listeners
        if config.protocol_of(listener.name) is SecurityProtocol.PLAINTEXT
    ]
    if plain:
        logger.warning(
            "ACLs are enforced, and everybody is User:ANONYMOUS at the plain-text listeners %s;"
            " give them a security protocol that tells users apart",
            ", ".join(plain),
        )
    if config.audit_log_path:
        settings = AuditSettings(
            config.audit_log_path,
            config.audit_log_decisions == "all",
            config.audit_log_max_per_second,
            config.audit_log_max_bytes,
        )
        node.audit = AuditLog(settings, files, node.clock, node.workers, node.metrics)


def follow_acls(node: Node, old: Image, new: Image) -> None:
    """Renew the authorizer if ACLs or roles have changed."""
    authorizer = node.authorizer
    if not isinstance(authorizer, AclAuthorizer):
        return
    roles = authorizer.roles
    if new.configs is not old.configs:
        roles = roles_of_members(new.configs)
    if new.acls is not old.acls or roles != authorizer.roles:
        node.authorizer = authorizer.changed(new.acls, roles)


def stop_audit(node: Node) -> None:
    """Write the decisions that are still queued."""
    if node.audit is not None:
        node.audit.close()
