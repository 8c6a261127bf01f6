"""Records of security wait until every controller can read them, as well as every broker."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.security_records import submit_security_change
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.features import REGISTERED_RANGES, SUPPORTED, Ranges
from headrace.metadata.image import BrokerImage, ConfigKey, ConfigResourceType, Image
from headrace.metadata.records import CommandResult
from headrace.protocol.apis import Api

NEW = frozenset({int(Api.API_VERSIONS), int(Api.CREATE_ACLS)})
OLD = frozenset({int(Api.API_VERSIONS)})
DONE = "done"


def broker(broker_id: int, ranges: Ranges) -> BrokerImage:
    return BrokerImage(broker_id, 1, bytes(16), (), None, False, features=ranges)


def node_of(
    image: Image, controllers: dict[int, frozenset[int] | None], *, active: bool = True
) -> Any:
    """Node 1 and other voters, each with the APIs it serves; None for one that does not answer."""

    async def served(node_id: int) -> frozenset[int] | None:
        return controllers[node_id]

    async def submit(command: Any) -> Any:
        return command(image, 0).response

    return SimpleNamespace(
        node_id=1,
        store=SimpleNamespace(image=image, is_active=active, submit=submit),
        quorum=SimpleNamespace(
            voters=[SimpleNamespace(node_id=node_id) for node_id in (1, *controllers)],
            served_apis_of=served,
        ),
    )


def change(node: Any) -> str:
    return asyncio.run(submit_security_change(cast("Any", node), lambda _: CommandResult((), DONE)))


def refusal(node: Any) -> str:
    with pytest.raises(KafkaError) as caught:
        change(node)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    return str(caught.value)


def test_controllers_that_are_no_brokers_are_asked() -> None:
    assert change(node_of(Image(), {2: NEW, 3: NEW})) == DONE
    assert "controller 3 has a version" in refusal(node_of(Image(), {2: NEW, 3: OLD}))
    assert "controller 2 does not answer" in refusal(node_of(Image(), {2: None, 3: NEW}))


def test_brokers_are_known_by_their_registration() -> None:
    image = Image(brokers={2: broker(2, REGISTERED_RANGES)})
    assert change(node_of(image, {2: None})) == DONE
    image = Image(brokers={2: broker(2, SUPPORTED)})
    assert "broker 2 has a version" in refusal(node_of(image, {2: NEW}))


def test_nobody_is_asked_where_there_are_such_records() -> None:
    """A right can be revoked while a controller is down."""
    role = ConfigKey(ConfigResourceType.ROLE, "readers")
    image = Image(configs={role: {"description": ""}})
    assert change(node_of(image, {2: None})) == DONE
    topic = ConfigKey(ConfigResourceType.TOPIC, "t")
    image = Image(configs={topic: {"retention.ms": "1"}})
    assert "does not answer" in refusal(node_of(image, {2: None}))


def test_only_the_active_controller_asks() -> None:
    assert change(node_of(Image(), {2: None}, active=False)) == DONE
