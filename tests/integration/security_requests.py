"""A plain request of every API of security, quotas and telemetry, and the codes without them."""

from collections.abc import Callable

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api
from headrace.protocol.messages import (
    alter_client_quotas,
    create_acls,
    delete_acls,
    describe_user_scram_credentials,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from headrace.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from headrace.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from headrace.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
)
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest
from headrace.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.protocol.schema import Message

_TOKENS: set[int] = {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}

SECURITY_ANSWERS: dict[Api, set[int]] = {
    Api.SASL_HANDSHAKE: {ErrorCode.ILLEGAL_SASL_STATE},
    Api.SASL_AUTHENTICATE: {ErrorCode.ILLEGAL_SASL_STATE},
    Api.DESCRIBE_ACLS: {ErrorCode.SECURITY_DISABLED},
    Api.CREATE_ACLS: {ErrorCode.SECURITY_DISABLED},
    Api.DELETE_ACLS: {ErrorCode.SECURITY_DISABLED},
    Api.CREATE_DELEGATION_TOKEN: _TOKENS,
    Api.RENEW_DELEGATION_TOKEN: _TOKENS,
    Api.EXPIRE_DELEGATION_TOKEN: _TOKENS,
    Api.DESCRIBE_DELEGATION_TOKEN: _TOKENS,
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: {0, ErrorCode.RESOURCE_NOT_FOUND},
    Api.ALTER_USER_SCRAM_CREDENTIALS: {0},
    # The id of no client.
    Api.PUSH_TELEMETRY: {ErrorCode.INVALID_REQUEST},
}


def security_requests() -> dict[Api, Callable[[int], Message]]:
    """Requests as a client of a secured cluster would send them."""
    return {
        Api.SASL_HANDSHAKE: lambda version: SaslHandshakeRequest(mechanism="PLAIN"),
        Api.SASL_AUTHENTICATE: lambda version: SaslAuthenticateRequest(auth_bytes=b"\0a\0b"),
        Api.DESCRIBE_ACLS: lambda version: DescribeAclsRequest(
            resource_type_filter=1, operation=1, permission_type=1
        ),
        Api.CREATE_ACLS: lambda version: create_acls.CreateAclsRequest(
            creations=[create_acls.AclCreation(resource_type=2, resource_name="t")]
        ),
        Api.DELETE_ACLS: lambda version: delete_acls.DeleteAclsRequest(
            filters=[delete_acls.DeleteAclsFilter(resource_type_filter=1)]
        ),
        Api.CREATE_DELEGATION_TOKEN: lambda version: CreateDelegationTokenRequest(),
        Api.RENEW_DELEGATION_TOKEN: lambda version: RenewDelegationTokenRequest(hmac=b"x"),
        Api.EXPIRE_DELEGATION_TOKEN: lambda version: ExpireDelegationTokenRequest(hmac=b"x"),
        Api.DESCRIBE_DELEGATION_TOKEN: lambda version: DescribeDelegationTokenRequest(),
        Api.DESCRIBE_CLIENT_QUOTAS: lambda version: DescribeClientQuotasRequest(),
        Api.ALTER_CLIENT_QUOTAS: lambda version: alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                alter_client_quotas.EntryData(
                    entity=[alter_client_quotas.EntityData(entity_type="user", entity_name="a")],
                    ops=[alter_client_quotas.OpData(key="producer_byte_rate", value=1.0)],
                )
            ]
        ),
        Api.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda version: (
            describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
                users=[describe_user_scram_credentials.UserName(name="a")]
            )
        ),
        Api.ALTER_USER_SCRAM_CREDENTIALS: lambda version: AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name="a",
                    mechanism=1,
                    iterations=4096,
                    salt=bytes(16),
                    salted_password=bytes(32),
                )
            ]
        ),
        Api.GET_TELEMETRY_SUBSCRIPTIONS: lambda version: GetTelemetrySubscriptionsRequest(),
        Api.PUSH_TELEMETRY: lambda version: PushTelemetryRequest(),
    }
