"""Quotas of users, client ids and addresses: what there is, and changes to it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict, Unpack

from headrace.client.admin.admin_requests import ControllerRequests
from headrace.client.admin.arguments import name_of, names_of
from headrace.client.cluster import ClusterClient
from headrace.client.errors import check
from headrace.errors import Subject
from headrace.protocol.messages import alter_client_quotas as alter
from headrace.protocol.messages import describe_client_quotas as describe

_EXACT, _DEFAULT, _ANY = range(3)
# Kafka's names of the kinds, by ours.
_KINDS = {"user": "user", "client_id": "client-id", "ip": "ip"}
_NAMES = {kafka_name: name for name, kafka_name in _KINDS.items()}


class QuotaOwner(TypedDict, total=False):
    """Whose quotas are meant, as keyword arguments; None is the default of its kind.

    A user and a client id may be given together, and mean that client id of that user.
    """

    user: str | None
    client_id: str | None
    ip: str | None


@dataclass(frozen=True, slots=True)
class OwnerQuotas:
    """The quotas of one owner: names by kind, of which None is the default, and values by key."""

    owner: Mapping[str, str | None]
    quotas: Mapping[str, float]

    def __str__(self) -> str:
        return str(_subject(self.owner))


def _subject(owner: Mapping[str, str | None]) -> Subject:
    texts = (
        f"{_KINDS.get(kind, kind)} {'(default)' if name is None else name}"
        for kind, name in owner.items()
    )
    return Subject("quotas of", ", ".join(texts))


def _checked(owner: QuotaOwner) -> dict[str, str | None]:
    unknown = owner.keys() - _KINDS.keys()
    if unknown:
        raise TypeError(f"there is no {min(unknown)!r} that has quotas; give user, client_id or ip")
    names: dict[str, str | None] = {}
    for kind in _KINDS:
        if kind in owner:
            name = owner[kind]  # type: ignore[literal-required]
            names[kind] = None if name is None else name_of(name, kind)
    return names


async def describe_client_quotas(
    cluster: ClusterClient, kinds: Iterable[str], *, exact: bool, **owner: Unpack[QuotaOwner]
) -> list[OwnerQuotas]:
    """The owners that have these names and kinds; with `exact` those that have nothing else."""
    names = _checked(owner)
    wanted = names_of(kinds, "kind")
    if unknown := set(wanted) - _KINDS.keys():
        raise ValueError(f"{min(unknown)!r} is no kind of owner; give some of {', '.join(_KINDS)}")
    components = [
        describe.ComponentData(
            entity_type=_KINDS[kind],
            match_type=_DEFAULT if name is None else _EXACT,
            match=name,
        )
        for kind, name in names.items()
    ]
    components += [
        describe.ComponentData(entity_type=_KINDS[kind], match_type=_ANY, match=None)
        for kind in wanted
        if kind not in names
    ]
    request = describe.DescribeClientQuotasRequest(components=components, strict=exact)
    deadline = cluster.deadline()

    async def attempt() -> list[OwnerQuotas]:
        response = await cluster.call(request, deadline)
        check(response.error_code, response.error_message, Subject("client quotas"))
        return [
            OwnerQuotas(
                {
                    _NAMES.get(part.entity_type, part.entity_type): part.entity_name
                    for part in sorted(
                        entry.entity, key=lambda part: part.entity_type, reverse=True
                    )
                },
                {value.key: value.value for value in entry.values},
            )
            for entry in response.entries or ()
        ]

    return await cluster.retrying(attempt, deadline)


async def alter_client_quotas(
    cluster: ClusterClient,
    quotas: Mapping[str, float | None],
    *,
    validate_only: bool,
    **owner: Unpack[QuotaOwner],
) -> None:
    """Set quotas of one owner, or remove them with None. It may be repeated."""
    names = _checked(owner)
    if not names:
        raise TypeError("quotas belong to a user, a client id or an ip; give one, as user='alice'")
    request = alter.AlterClientQuotasRequest(
        entries=[
            alter.EntryData(
                entity=[
                    alter.EntityData(entity_type=_KINDS[kind], entity_name=name)
                    for kind, name in names.items()
                ],
                ops=[
                    alter.OpData(key=key, value=_rate(key, value), remove=value is None)
                    for key, value in quotas.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    target = ControllerRequests(cluster)
    deadline = cluster.deadline()

    async def attempt() -> None:
        response = await target.send(request, deadline)
        for entry in response.entries:
            check(entry.error_code, entry.error_message, _subject(names))

    await cluster.retrying(attempt, deadline)


def _rate(key: str, value: object) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name_of(key, 'quota')} is {value!r}; give a number, or None")
    return float(value)
