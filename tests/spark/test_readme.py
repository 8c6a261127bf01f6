"""What the README says of Spark works as it is written."""

import re
import runpy
from pathlib import Path

import headrace
from headrace.testing import Broker

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_example_counts_what_was_sent(spark, spark_broker: Broker, capsys, tmp_path) -> None:
    [example] = re.findall(r"^```python\n(import headrace\.pipelines.*?)^```", README, re.M | re.S)
    address = spark_broker.bootstrap_servers
    with headrace.Producer(bootstrap_servers=address) as producer:
        for number in range(5):
            producer.send("orders", f"espresso {number}", key="customer-7")
    program = tmp_path / "program.py"
    program.write_text(example.replace("127.0.0.1:9092", address))
    runpy.run_path(str(program))
    # Spark shows bytes in hexadecimal.
    assert re.search(r"\|\s*5\|", capsys.readouterr().out)
