"""Brokers and clients that the integration tests share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.integration.clients import CLIENTS, Client
from tests.support import BrokerProcess


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for a whole module of tests, each with topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def connect(shared_broker: BrokerProcess) -> Iterator[Callable[[type[Client]], Client]]:
    """Connect a client to the shared broker; it is closed after the test."""
    with ExitStack() as stack:

        def connect(kind: type[Client]) -> Client:
            client = kind(shared_broker.address)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest, connect: Callable[[type[Client]], Client]) -> Client:
    """Each of the clients in turn."""
    return connect(request.param)


_numbers = count(1)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_numbers)}"
