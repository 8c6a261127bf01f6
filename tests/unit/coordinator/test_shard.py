"""The effects of a call are that call's alone: one that raises leaves none for the next."""

import pytest

from headrace.coordinator.groups.classic_protocol import ClassicProtocol
from headrace.coordinator.records import decode_transaction_key
from headrace.coordinator.transactions import transaction_shard
from headrace.errors import ErrorCode
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.unit.coordinator.driving import Shell
from tests.unit.coordinator.transactions.driving import Shell as TransactionShell


def raise_planted(*_: object) -> None:
    raise AssertionError("planted")


def test_a_group_call_that_raises_leaves_nothing_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    waiting = shell.join(instance="i")
    assert waiting not in shell.answers
    monkeypatch.setattr(ClassicProtocol, "_prepare_or_complete", raise_planted)
    with pytest.raises(AssertionError):
        # The one that waits was told that it is fenced when this one was taken in.
        shell.join(instance="i")
    monkeypatch.undo()
    assert shell.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert waiting not in shell.answers


def test_a_transaction_call_that_raises_leaves_nothing_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = TransactionShell()
    request = InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=60_000)
    monkeypatch.setattr(transaction_shard, "init_producer_id_response", raise_planted)
    with pytest.raises(AssertionError):
        shell.send(request, 4)
    monkeypatch.undo()
    request.transactional_id = "b"
    shell.send(request, 4)
    assert [decode_transaction_key(record.key) for record in shell.log] == ["b"]
