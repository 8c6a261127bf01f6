"""The example for columns runs, and what it computes from what it reads is what it sent."""

import subprocess
import sys
from pathlib import Path

from examples import arrow_client
from headrace.testing import Broker
from headrace.testing.time_limits import scaled

ROOT = Path(__file__).resolve().parents[3]
ORDERS = 20_000


def test_the_example_adds_up_what_it_has_sent() -> None:
    with Broker() as broker:
        command = [sys.executable, str(ROOT / "examples" / "arrow_client.py")]
        command += ["--bootstrap-server", broker.bootstrap_servers, "--orders", str(ORDERS)]
        result = subprocess.run(
            [*command, "--topic", "orders"],
            capture_output=True,
            text=True,
            timeout=scaled(60),
            check=False,
        )
    assert result.returncode == 0, result.stderr
    [first, *regions] = result.stdout.splitlines()
    assert first == "20,000 orders sent to orders"
    expected = arrow_client.summary(arrow_client.orders(ORDERS)).to_pylist()
    assert [row["region"] for row in expected] == ["east", "north", "south", "west"]
    assert sum(row["cents_count"] for row in expected) == ORDERS
    assert regions == [
        f"{row['region']}: {row['cents_count']:,} orders, {row['cents_sum'] / 100:,.2f}"
        for row in expected
    ]
