"""Users of SCRAM, ACLs, roles and quotas: lists, and forms that add and remove."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.admin.acls import Acl, Role
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


async def _list_page(
    request: Request,
    name: str,
    change: Callable[[Form], Awaitable[str]],
    describe: Callable[[], Awaitable[Sequence[Any]]],
    columns: Mapping[str, SortKey[Any]],
    text: Callable[[Any], str],
    **more: Any,
) -> Response:
    """The list at `/<name>`, after the change that a form on it asks for, or with its error."""
    path = f"/{name}"
    error: HeadraceError | None = None
    if request.method == "POST":
        form = await read_form(request)
        try:
            return redirect(request, path, await change(form))
        except HeadraceError as refusal:
            error = refusal
        except (ValueError, TypeError) as refusal:
            error = FieldError("", str(refusal))
    rows, missing = await _described(describe)
    more[name] = listing(request.query_params, path, rows, columns, text=text)
    return page(
        request,
        f"{name}.html",
        status=400 if error else 200,
        missing=missing,
        error=error,
        **more,
    )


async def _described(
    describe: Callable[[], Awaitable[Sequence[Any]]],
) -> tuple[Sequence[Any], str]:
    """The entries that the cluster answers with, or none and why there is nothing to show."""
    try:
        return await describe(), ""
    except AuthenticationFailed:
        raise
    except KafkaError as error:
        if error.code in _NOT_SERVED:
            return (), _NOT_SERVED[error.code]
        what, advice = words_of(error)
        return (), f"{what} {advice}".strip()


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

    async def described() -> list[Entry]:
        return list((await admin.describe_user_scram_credentials()).items())

    return await _list_page(
        request,
        "users",
        change,
        described,
        _USER_COLUMNS,
        lambda entry: entry[0],
        title="Users",
        mechanisms=MECHANISMS,
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

    return await _list_page(
        request,
        "acls",
        change,
        admin.describe_acls,
        _ACL_COLUMNS,
        str,
        title="ACLs",
        operations=OPERATIONS,
        resource_types=RESOURCE_TYPES,
    )


# -- roles

_ROLE_COLUMNS: dict[str, SortKey[Role]] = {"name": SortKey(lambda role: role.name)}


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

    async def described() -> list[Role]:
        return list((await admin.describe_roles()).values())

    return await _list_page(
        request,
        "roles",
        change,
        described,
        _ROLE_COLUMNS,
        lambda role: f"{role.name} {role.description} {' '.join(role.members)}",
        title="Roles",
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

    return await _list_page(
        request,
        "quotas",
        change,
        admin.describe_client_quotas,
        _QUOTA_COLUMNS,
        str,
        title="Quotas",
        keys=QUOTA_KEYS,
    )


_BOTH = ["GET", "POST"]
ROUTES = [
    Route("/users", users, methods=_BOTH),
    Route("/acls", acls, methods=_BOTH),
    Route("/roles", roles, methods=_BOTH),
    Route("/quotas", quotas, methods=_BOTH),
]
