"""What the blocking client adds to the asyncio one, and that it leaves nothing out."""

import inspect

import pytest

from headrace.client.admin import admin as blocking
from headrace.client.admin import aio
from headrace.client.errors import Closed
from headrace.errors import ConfigError
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import AdminBrokers


def calls_of(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def test_both_clients_have_the_same_calls() -> None:
    assert calls_of(blocking.Admin) == calls_of(aio.AsyncAdmin)
    assert len(calls_of(blocking.Admin)) > 20
    for name, member in vars(blocking.Admin).items():
        if name in calls_of(blocking.Admin):
            assert member.__doc__, f"{name} does not say what it does"


def test_a_closed_client_says_so() -> None:
    brokers = AdminBrokers()

    async def scenario() -> None:
        admin = aio.AsyncAdmin.over(brokers.new_cluster())
        await admin.list_topics()
        await admin.close()
        await admin.close()
        assert repr(admin) == "<headrace.aio.Admin headrace, closed>"
        with pytest.raises(Closed, match="make a new one"):
            await admin.list_topics()

    brokers.run(scenario())


def test_the_blocking_client_runs_the_calls_of_the_other() -> None:
    brokers = AdminBrokers()
    with blocking.Admin.over(brokers.new_cluster()) as admin:
        assert admin.create_topic("a", partitions=2).partitions == 2
        assert list(admin.list_topics()) == ["a"]
        tp = TopicPartition("a", 1)
        admin.alter_group_offsets("g", {tp: 3})
        assert admin.group_offsets("g")[tp].offset == 3
        assert repr(admin) == "<headrace.Admin headrace>"
    assert repr(admin) == "<headrace.Admin headrace, closed>"
    admin.close()
    with pytest.raises(Closed, match="make a new one"):
        admin.list_topics()


@pytest.mark.parametrize("kind", [blocking.Admin, aio.AsyncAdmin])
def test_options_are_checked_when_a_client_is_made(kind: type) -> None:
    with pytest.raises(ConfigError, match="request_timeout_ms"):
        kind(request_timeout=1)
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        kind(bootstrap_servers="a:b:c")
