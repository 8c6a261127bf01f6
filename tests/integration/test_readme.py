"""What the README tells people to type works as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.time_limits import scaled
from tests.support import BrokerProcess, headrace_command
from tests.unit.cli.invoking import invoke

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DEFAULT_ADDRESS = "127.0.0.1:9092"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def _run(command: list[str], address: str) -> str:
    bin_path = f"{Path(headrace_command()).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HEADRACE_BOOTSTRAP_SERVER": address, "PATH": bin_path}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def _create_orders(broker: BrokerProcess) -> None:
    command = [headrace_command(), "topics", "create", "orders", "--partitions", "4"]
    _run(command, broker.address)


@pytest.mark.parametrize("client", ["headrace", "confluent_kafka", "kafka", "aiokafka"])
def test_client_example_reads_back_what_it_sent(broker: BrokerProcess, client: str) -> None:
    imports = re.compile(rf"^(import|from) {client}\b(?!\.pipelines)", re.MULTILINE)
    [example] = [code for code in _blocks("python") if imports.search(code)]
    assert DEFAULT_ADDRESS in example
    _create_orders(broker)
    program = example.replace(DEFAULT_ADDRESS, broker.address)
    # A group takes longer to form on a busy machine.
    program = program.replace("=3000,", f"={round(scaled(3.0) * 1000)},")
    assert "one espresso" in _run([sys.executable, "-c", program], broker.address)


def test_shell_example_reads_back_what_it_sent(broker: BrokerProcess) -> None:
    [example] = [text for text in _blocks("") if "headrace produce" in text]
    assert "hello" in _run(["bash", "-euo", "pipefail", "-c", example], broker.address)


def test_commands_in_the_table_exist() -> None:
    for name in re.findall(r"^\| `headrace (\w+)", README, re.MULTILINE):
        assert "Usage" in invoke(name, "--help").output
