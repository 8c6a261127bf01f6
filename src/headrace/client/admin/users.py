"""Users of SCRAM and delegation tokens of a cluster: looked at and changed."""

import secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.admin.admin_requests import (
    ControllerRequests,
    is_refused_for_now,
    results,
    retry_until_answered,
)
from headrace.client.admin.arguments import name_of, names_of, number_of
from headrace.client.cluster import ClusterClient
from headrace.client.errors import check, failure
from headrace.errors import KafkaError, Subject
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from headrace.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from headrace.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from headrace.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from headrace.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    salted_password,
    scram_mechanism,
)

_SALT_BYTES = 24
# Kafka's word for "as the settings of the brokers have it".
BY_SETTINGS = -1


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A password of a user for one SCRAM mechanism, new or in place of the present one.

    The password is hashed here: the cluster never gets it.
    """

    user: str
    mechanism: str
    password: str = field(repr=False)
    iterations: int = ITERATIONS_MIN


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """The end of a user's password for one SCRAM mechanism."""

    user: str
    mechanism: str


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token. It logs in by SCRAM: `token_id` is the name, `password` the password."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    @property
    def password(self) -> str:
        """The password that it logs in with, beside `sasl_delegation_token=True`."""
        return b64encode(self.hmac).decode()


def _mechanism(name: str) -> ScramMechanism:
    found = scram_mechanism(name) if isinstance(name, str) else None
    if found is None:
        known = " or ".join(mechanism.sasl.value for mechanism in ScramMechanism)
        raise ValueError(f"{name!r} is no SCRAM mechanism; give {known}")
    return found


def _upsertion(change: ScramUpsertion) -> ScramCredentialUpsertion:
    mechanism = _mechanism(change.mechanism)
    iterations = number_of(change.iterations, "iterations", ITERATIONS_MIN, ITERATIONS_MAX)
    if not isinstance(change.password, str) or not change.password:
        raise ValueError(f"the password of {change.user!r} must be a text that is not empty")
    salt = secrets.token_bytes(_SALT_BYTES)
    return ScramCredentialUpsertion(
        name=name_of(change.user, "user"),
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, change.password, salt, iterations),
    )


def _deletion(change: ScramDeletion) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(
        name=name_of(change.user, "user"), mechanism=_mechanism(change.mechanism)
    )


class UserAdmin:
    """Commands about the users of SCRAM."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def describe(self, users: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """The iterations of each mechanism of users, by name; of all users if none is named."""
        wanted = names_of(users, "user")
        request = DescribeUserScramCredentialsRequest(
            users=[UserName(name=name) for name in wanted] or None
        )
        deadline = self._cluster.deadline()

        async def attempt() -> Mapping[str, dict[str, int] | KafkaError]:
            response = await self._cluster.call(request, deadline)
            check(response.error_code, response.error_message, Subject("list of users"))
            return {
                answer.user: failure(
                    answer.error_code, answer.error_message, Subject("user", answer.user)
                )
                or {
                    ScramMechanism(info.mechanism).sasl.value: info.iterations
                    for info in answer.credential_infos
                    if info.mechanism in set(ScramMechanism)
                }
                for answer in response.results
            }

        return results(await self._cluster.retrying(attempt, deadline))

    async def alter(self, changes: Iterable[ScramUpsertion | ScramDeletion]) -> None:
        """Set and delete passwords, in their order."""
        if isinstance(changes, ScramUpsertion | ScramDeletion):
            raise TypeError(f"{changes!r} is one change, not a list of them; write [{changes!r}]")
        # Brokers take one change of each user in a request.
        rounds: list[dict[str, ScramCredentialUpsertion | ScramCredentialDeletion]] = []
        for change in changes:
            row = _upsertion(change) if isinstance(change, ScramUpsertion) else _deletion(change)
            free = next((found for found in rounds if row.name not in found), None)
            if free is None:
                rounds.append(free := {})
            free[row.name] = row
        for rows in rounds:
            await self._alter_each(rows)

    async def _alter_each(
        self, rows: Mapping[str, ScramCredentialUpsertion | ScramCredentialDeletion]
    ) -> None:
        target = ControllerRequests(self._cluster)

        async def attempt(missing: list[str], deadline: float) -> dict[str, KafkaError | None]:
            wanted = [rows[name] for name in missing]
            request = AlterUserScramCredentialsRequest(
                deletions=[row for row in wanted if isinstance(row, ScramCredentialDeletion)],
                upsertions=[row for row in wanted if isinstance(row, ScramCredentialUpsertion)],
            )
            answers = (await target.send_once(request, deadline)).results
            return {
                answer.user: failure(
                    answer.error_code, answer.error_message, Subject("user", answer.user)
                )
                for answer in answers
            }

        results(await retry_until_answered(self._cluster, list(rows), attempt, is_refused_for_now))


class TokenAdmin:
    """Commands about delegation tokens."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def create(
        self, renewers: Iterable[str], owner: str | None, max_lifetime_ms: int
    ) -> DelegationToken:
        """Create a token; it is not asked for twice, for each time would make another one."""
        parsed = [_parsed(renewer) for renewer in names_of(renewers, "renewer")]
        owner_kind, owner_name = (None, None) if owner is None else _parsed(owner)
        request = CreateDelegationTokenRequest(
            owner_principal_type=owner_kind,
            owner_principal_name=owner_name,
            renewers=[
                CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in parsed
            ],
            max_lifetime_ms=max_lifetime_ms,
        )
        target = ControllerRequests(self._cluster)
        answer = await target.send_once(request, self._cluster.deadline())
        check(answer.error_code, None, Subject("delegation token"))
        return DelegationToken(
            token_id=answer.token_id,
            hmac=bytes(answer.hmac),
            owner=f"{answer.principal_type}:{answer.principal_name}",
            requester=f"{answer.token_requester_principal_type}:"
            f"{answer.token_requester_principal_name}",
            renewers=tuple(f"{kind}:{name}" for kind, name in parsed),
            issued_ms=answer.issue_timestamp_ms,
            expires_ms=answer.expiry_timestamp_ms,
            max_ms=answer.max_timestamp_ms,
        )

    async def renew(self, secret: bytes, period_ms: int) -> int:
        """Renew a token; when it expires now."""
        return await self._expiry(
            RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
        )

    async def expire(self, secret: bytes, period_ms: int) -> int:
        """Let a token expire after a time, or at once; when it does."""
        return await self._expiry(
            ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
        )

    async def describe(self, owners: Iterable[str] | None) -> list[DelegationToken]:
        """The tokens of some owners, or of all, that the user may know of."""
        requested = None
        if owners is not None:
            requested = [
                DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
                for kind, name in map(_parsed, names_of(owners, "owner"))
            ]
        deadline = self._cluster.deadline()

        async def attempt() -> list[DelegationToken]:
            response = await self._cluster.call(
                DescribeDelegationTokenRequest(owners=requested), deadline
            )
            check(response.error_code, None, Subject("list of delegation tokens"))
            return [_described(token) for token in response.tokens]

        return await self._cluster.retrying(attempt, deadline)

    async def _expiry(
        self, request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest
    ) -> int:
        target = ControllerRequests(self._cluster)
        deadline = self._cluster.deadline()

        async def attempt() -> int:
            answer = await target.send_once(request, deadline)
            check(answer.error_code, None, Subject("delegation token"))
            expires_ms: int = answer.expiry_timestamp_ms
            return expires_ms

        return await self._cluster.retrying(attempt, deadline)


def _described(token: Any) -> DelegationToken:
    requester = token.token_requester_principal_name
    owner = f"{token.principal_type}:{token.principal_name}"
    return DelegationToken(
        token_id=token.token_id,
        hmac=bytes(token.hmac),
        owner=owner,
        requester=f"{token.token_requester_principal_type}:{requester}" if requester else owner,
        renewers=tuple(
            f"{renewer.principal_type}:{renewer.principal_name}" for renewer in token.renewers
        ),
        issued_ms=token.issue_timestamp,
        expires_ms=token.expiry_timestamp,
        max_ms=token.max_timestamp,
    )


def _parsed(principal: str) -> tuple[str, str]:
    """The type and name of a principal, such as `User:alice`."""
    kind, separator, name = principal.partition(":")
    if not separator or not kind or not name:
        raise ValueError(f"{principal!r} is no principal; write User:{principal}")
    return kind, name
