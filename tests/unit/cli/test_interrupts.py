import os
import signal

import pytest

from headrace.cli.interrupts import Interrupts


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_waits_for_a_moment_where_it_is_allowed() -> None:
    with Interrupts() as interrupts:
        press_ctrl_c()
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            pytest.fail("the block must not run")
        assert not interrupts.insisted


def test_ctrl_c_strikes_where_it_is_allowed() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            press_ctrl_c()
        assert interrupts.requested


def test_a_second_ctrl_c_strikes_anywhere() -> None:
    with Interrupts() as interrupts:
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
        assert interrupts.insisted


def test_ctrl_c_is_as_it_was_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
