"""The demo proves what it says it proves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.time_limits import scaled
from tests.spark.processes import QUICK_ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_demo_counts_every_order_and_ends_well() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--orders", "5000"],
        cwd=ROOT,
        env=os.environ | QUICK_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=scaled(280),
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        "4,995 orders counted + 5 unreadable ones in orders-dead = 5,000 sent:"
        " none lost, none counted twice"
    ) in result.stdout
    assert "lag of the group orders-by-region.totals: 0" in result.stdout
    assert "the brokers stopped cleanly" in result.stdout
