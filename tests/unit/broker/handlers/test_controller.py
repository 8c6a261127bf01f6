"""What brokers and operators are answered by the controller's handlers."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.handlers import controller as handlers
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.brokers import ProducerIdBlock
from headrace.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from headrace.protocol.schema import Message

Handler = Callable[[RequestContext, Any], Awaitable[Any]]

# The handler, a request, what the controller comes to, and what is answered then.
CASES: list[tuple[Handler, Message, object, Message]] = [
    (
        handlers.register,
        BrokerRegistrationRequest(),
        17,
        BrokerRegistrationResponse(broker_epoch=17),
    ),
    (
        handlers.heartbeat,
        BrokerHeartbeatRequest(),
        BrokerHeartbeatResponse(is_fenced=False),
        BrokerHeartbeatResponse(is_fenced=False),
    ),
    (
        handlers.alter_partition,
        AlterPartitionRequest(),
        AlterPartitionResponse(throttle_time_ms=3),
        AlterPartitionResponse(throttle_time_ms=3),
    ),
    (
        handlers.assign_replicas_to_dirs,
        AssignReplicasToDirsRequest(),
        AssignReplicasToDirsResponse(throttle_time_ms=3),
        AssignReplicasToDirsResponse(throttle_time_ms=3),
    ),
    (
        handlers.allocate_producer_ids,
        AllocateProducerIdsRequest(),
        ProducerIdBlock(3000, 1000),
        AllocateProducerIdsResponse(producer_id_start=3000, producer_id_len=1000),
    ),
    (
        handlers.unregister,
        UnregisterBrokerRequest(),
        None,
        UnregisterBrokerResponse(error_message=None),
    ),
    (
        handlers.elect_leaders,
        ElectLeadersRequest(),
        ElectLeadersResponse(throttle_time_ms=3),
        ElectLeadersResponse(throttle_time_ms=3),
    ),
]


class FakeController:
    """Comes to the same with everything it is asked."""

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome

    def __getattr__(self, name: str) -> Callable[[Message], Awaitable[object]]:
        async def decide(request: Message) -> object:
            if isinstance(self._outcome, KafkaError):
                raise self._outcome
            return self._outcome

        return decide


def answer(handler: Handler, request: Message, controller: FakeController | None) -> Any:
    context = SimpleNamespace(node=SimpleNamespace(controller=controller))

    async def main() -> Any:
        return await handler(cast("RequestContext", context), request)

    return asyncio.run(main())


@pytest.mark.parametrize(("handler", "request_", "outcome", "response"), CASES)
def test_what_the_controller_decides_is_answered(
    handler: Handler, request_: Message, outcome: object, response: Message
) -> None:
    assert answer(handler, request_, FakeController(outcome)) == response


@pytest.mark.parametrize(("handler", "request_"), [case[:2] for case in CASES])
def test_what_it_refuses_is_answered_with_a_code(handler: Handler, request_: Message) -> None:
    refusal = KafkaError(ErrorCode.STALE_BROKER_EPOCH, "another run")
    response = answer(handler, request_, FakeController(refusal))
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(("handler", "request_"), [case[:2] for case in CASES])
def test_a_node_without_the_role_says_so(handler: Handler, request_: Message) -> None:
    assert answer(handler, request_, None).error_code == ErrorCode.NOT_CONTROLLER
