"""Records that a registered broker of an older version cannot read are refused, and not written."""

from collections.abc import Callable

import pytest

from headrace import Acl, Admin, ErrorCode, KafkaError, ScramUpsertion
from headrace.metadata.features import SUPPORTED
from headrace.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from headrace.testing import Broker
from tests.integration.wire import Wire

OLD = 9
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
CHANGES: list[Callable[[Admin], object]] = [
    lambda admin: admin.alter_client_quotas({"producer_byte_rate": 1.0}, user="u"),
    lambda admin: admin.create_acls([Acl("User:u", "read", "topic", "t")]),
    lambda admin: admin.alter_user_scram_credentials(
        [ScramUpsertion("u", "SCRAM-SHA-256", "secret")]
    ),
    lambda admin: admin.create_role("readers", "who may read"),
]


def register_old_broker(address: str) -> None:
    """Register a broker that knows the cluster's features, and no records of security."""
    with Wire(address) as wire, Admin(bootstrap_servers=address) as admin:
        answer: BrokerRegistrationResponse = wire.ask(
            BrokerRegistrationRequest(
                broker_id=OLD,
                cluster_id=admin.describe_cluster().cluster_id or "",
                incarnation_id=bytes(15) + b"9",
                listeners=[Listener(name="PLAINTEXT", host="h", port=1, security_protocol=0)],
                features=[
                    Feature(name=name, min_supported_version=low, max_supported_version=high)
                    for name, (low, high) in SUPPORTED.items()
                ],
                log_dirs=[bytes(15) + b"d"],
            )
        )
        assert answer.error_code == ErrorCode.NONE


def test_security_waits_until_no_old_broker_is_registered() -> None:
    with Broker(config=AUTHORIZER) as broker:
        register_old_broker(broker.bootstrap_servers)
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            for change in CHANGES:
                with pytest.raises(KafkaError, match=r"broker 9 has a version.*upgrade it first"):
                    change(admin)
            admin.unregister_broker(OLD)
            for change in CHANGES:
                change(admin)
            assert len(admin.describe_acls()) == 1
