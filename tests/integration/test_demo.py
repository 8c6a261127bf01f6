"""The demo proves what it says it proves."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_demo_gets_every_order_back_and_ends_well() -> None:
    result = subprocess.run(
        [sys.executable, str(DEMO), "--orders", "5000"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "5,000 orders came back: none lost, none doubled, none out of order" in result.stdout
    assert "the broker stopped cleanly" in result.stdout
