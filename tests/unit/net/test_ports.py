"""Ports that are held for somebody who does not listen on them all the time."""

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.net.ports import HeldPort, listen, listen_on_unused_port

HOST = "127.0.0.1"


@pytest.fixture
def held() -> Iterator[HeldPort]:
    port = HeldPort(HOST)
    yield port
    port.release()


def is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind((HOST, port))
        except OSError:
            return False
        return True


def test_a_held_port_can_be_listened_on_again_and_again(held: HeldPort) -> None:
    for _ in range(2):
        with listen(HOST, held.number), socket.create_connection((HOST, held.number)):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, held.number))


def test_nobody_else_gets_it_while_it_is_not_listened_on(
    held: HeldPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = random.sample(range(20_000, 32_000), 100)
    monkeypatch.setattr(random.Random, "sample", lambda *_: [held.number, *others])
    other = HeldPort(HOST)
    assert other.number != held.number
    other.release()
    with listen_on_unused_port(HOST) as listener:
        assert listener.getsockname()[1] != held.number


def test_it_is_free_again_when_it_is_released_or_its_holder_is_gone(held: HeldPort) -> None:
    assert not is_free(held.number)
    held.release()
    assert is_free(held.number)
    number = HeldPort(HOST).number
    assert is_free(number)


def test_a_stack_holds_ports_that_nothing_else_refers_to() -> None:
    with ExitStack() as stack:
        number = stack.enter_context(HeldPort(HOST)).number
        assert not is_free(number)
    assert is_free(number)


def test_a_machine_without_free_ports_is_told(
    held: HeldPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random.Random, "sample", lambda *_: [held.number])
    with pytest.raises(OSError, match="no free port was found between 20000 and 32000"):
        HeldPort(HOST)
