"""Users of SCRAM, ACLs, roles and quotas: lists, and forms that add and remove."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.admin.acls import Acl
from headrace.client.admin.quotas import OwnerQuotas, QuotaOwner
from headrace.client.admin.users import ScramDeletion, ScramUpsertion
from headrace.console.errors import FieldError, words_of
from headrace.console.forms import Form, read_form
from headrace.console.listing import SortKey, listing
from headrace.console.rendering import page, redirect
from headrace.console.viewers import access_of
from headrace.errors import AuthenticationFailed, ErrorCode, HeadraceError, KafkaError

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
RESOURCE_TYPES = ("topic", "group", "cluster", "transactional_id", "delegation_token", "user")
OPERATIONS = (
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
    "create_tokens",
    "describe_tokens",
    "all",
)
QUOTA_KEYS = {
    "producer_byte_rate": "bytes/s written",
    "consumer_byte_rate": "bytes/s read",
    "request_percentage": "% of request time",
    "controller_mutation_rate": "partition changes/s",
    "connection_creation_rate": "new connections/s of an address",
}

Entry = tuple[str, dict[str, int]]

# An answer that means: this cluster has none of it, or does not say.
_NOT_SERVED = {
    ErrorCode.UNSUPPORTED_VERSION: "This cluster does not serve it.",
    ErrorCode.SECURITY_DISABLED: "This cluster has no authorizer, so everything is allowed: set"
    " authorizer.class.name in the settings of its brokers to enforce ACLs.",
    ErrorCode.INVALID_REQUEST: "This cluster does not serve it.",
    ErrorCode.INVALID_CONFIG: "This cluster does not serve it.",
}


async def _asked(call: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
    """What the cluster answers, or why there is nothing to show."""
    try:
        return await call(), ""
    except AuthenticationFailed:
        raise
    except KafkaError as error:
        if error.code in _NOT_SERVED:
            return None, _NOT_SERVED[error.code]
        what, advice = words_of(error)
        return None, f"{what} {advice}".strip()


async def _changed(
    request: Request, change: Callable[[Form], Awaitable[str]], path: str
) -> Response | HeadraceError:
    """What is answered after a change of a form: the list, or the error to show on it."""
    form = await read_form(request)
    try:
        return redirect(request, path, await change(form))
    except HeadraceError as error:
        return error
    except (ValueError, TypeError) as error:
        return FieldError("", str(error))


# -- users

_USER_COLUMNS: dict[str, SortKey[Entry]] = {"name": SortKey(lambda entry: entry[0])}


async def users(request: Request) -> Response:
    """`/users`: the users that log in by SCRAM."""
    admin = access_of(request).admin

    async def change(form: Form) -> str:
        name = form.required("user", "the user")
        if form.text("action") == "delete":
            await admin.alter_user_scram_credentials(
                [ScramDeletion(name, mechanism) for mechanism in form.all("mechanism")]
            )
            return f"User {name} was deleted."
        password = form.verbatim("password")
        if not password:
            raise FieldError("password", "the password is missing")
        mechanism = form.text("mechanism", MECHANISMS[1])
        await admin.alter_user_scram_credentials([ScramUpsertion(name, mechanism, password)])
        return f"User {name} has a password for {mechanism}."

    error = None
    if request.method == "POST":
        outcome = await _changed(request, change, "/users")
        if isinstance(outcome, Response):
            return outcome
        error = outcome
    found, missing = await _asked(admin.describe_user_scram_credentials)
    rows = list((found or {}).items())
    return page(
        request,
        "users.html",
        title="Users",
        status=400 if error else 200,
        users=listing(
            request.query_params, "/users", rows, _USER_COLUMNS, text=lambda entry: entry[0]
        ),
        missing=missing,
        mechanisms=MECHANISMS,
        error=error,
    )


# -- ACLs

_ACL_COLUMNS: dict[str, SortKey[Acl]] = {
    "principal": SortKey(lambda acl: acl.principal),
    "resource": SortKey(lambda acl: f"{acl.resource_type} {acl.resource_name}"),
    "operation": SortKey(lambda acl: acl.operation),
}


def _acl_of(form: Form) -> Acl:
    return Acl(
        principal=form.required("principal", "the principal"),
        operation=form.required("operation", "the operation"),
        resource_type=form.required("resource_type", "the kind of resource"),
        resource_name=form.text("resource_name", "kafka-cluster")
        if form.text("resource_type") == "cluster"
        else form.required("resource_name", "the name of the resource"),
        pattern=form.text("pattern", "literal"),
        host=form.text("host", "*"),
        permission=form.text("permission", "allow"),
    )


async def acls(request: Request) -> Response:
    """`/acls`."""
    admin = access_of(request).admin

    async def change(form: Form) -> str:
        acl = _acl_of(form)
        if form.text("action") == "delete":
            deleted = await admin.delete_acls(
                principal=acl.principal,
                operation=acl.operation,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern=acl.pattern,
                host=acl.host,
                permission=acl.permission,
            )
            return f"Removed: {acl}." if deleted else "It was removed already."
        await admin.create_acls([acl])
        return f"Added: {acl}."

    error = None
    if request.method == "POST":
        outcome = await _changed(request, change, "/acls")
        if isinstance(outcome, Response):
            return outcome
        error = outcome
    found, missing = await _asked(admin.describe_acls)
    return page(
        request,
        "acls.html",
        title="ACLs",
        status=400 if error else 200,
        acls=listing(request.query_params, "/acls", found or [], _ACL_COLUMNS, text=str),
        missing=missing,
        operations=OPERATIONS,
        resource_types=RESOURCE_TYPES,
        error=error,
    )


# -- roles


async def roles(request: Request) -> Response:
    """`/roles`: named sets of rights, and who has them."""
    admin = access_of(request).admin

    async def change(form: Form) -> str:
        name = form.required("role", "the name of the role")
        match form.text("action"):
            case "create":
                await admin.create_role(name, form.text("description"))
                return f"Role {name} was made. Its rights are ACLs of Role:{name}."
            case "delete":
                await admin.delete_role(name)
                return f"Role {name} was deleted."
            case "bind":
                member = form.required("member", "the member")
                await admin.bind_role(name, [member])
                return f"{member} has the role {name}."
            case "unbind":
                member = form.required("member", "the member")
                await admin.unbind_role(name, [member])
                return f"{member} has the role {name} no more."
        raise FieldError("action", "the form says nothing to do")

    error = None
    if request.method == "POST":
        outcome = await _changed(request, change, "/roles")
        if isinstance(outcome, Response):
            return outcome
        error = outcome
    found, missing = await _asked(admin.describe_roles)
    return page(
        request,
        "roles.html",
        title="Roles",
        status=400 if error else 200,
        roles=listing(
            request.query_params,
            "/roles",
            (found or {}).values(),
            {"name": SortKey(lambda role: role.name)},
            text=lambda role: f"{role.name} {role.description} {' '.join(role.members)}",
        ),
        missing=missing,
        error=error,
    )


# -- quotas

_QUOTA_COLUMNS: dict[str, SortKey[OwnerQuotas]] = {"owner": SortKey(str)}


def _quota_owner(form: Form) -> QuotaOwner:
    owner: QuotaOwner = {}
    for kind in ("user", "client_id", "ip"):
        name = form.text(kind)
        if name:
            owner[kind] = None if name == "*" else name
    if not owner:
        raise FieldError("user", "whose quota it is, is missing", advice="fill in one field")
    return owner


async def quotas(request: Request) -> Response:
    """`/quotas`: what users, client ids and addresses may use of the cluster."""
    admin = access_of(request).admin

    async def change(form: Form) -> str:
        owner, key = _quota_owner(form), form.required("key", "the quota")
        if form.text("action") == "delete":
            await admin.alter_client_quotas({key: None}, **owner)
            return f"The quota {key} was removed."
        try:
            value = float(form.required("value", "the value"))
        except ValueError:
            raise FieldError("value", "the value is no number") from None
        await admin.alter_client_quotas({key: value}, **owner)
        return f"The quota {key} is {value:g} now."

    error = None
    if request.method == "POST":
        outcome = await _changed(request, change, "/quotas")
        if isinstance(outcome, Response):
            return outcome
        error = outcome
    found, missing = await _asked(admin.describe_client_quotas)
    return page(
        request,
        "quotas.html",
        title="Quotas",
        status=400 if error else 200,
        quotas=listing(request.query_params, "/quotas", found or [], _QUOTA_COLUMNS, text=str),
        missing=missing,
        keys=QUOTA_KEYS,
        error=error,
    )


_BOTH = ["GET", "POST"]
ROUTES = [
    Route("/users", users, methods=_BOTH),
    Route("/acls", acls, methods=_BOTH),
    Route("/roles", roles, methods=_BOTH),
    Route("/quotas", quotas, methods=_BOTH),
]
