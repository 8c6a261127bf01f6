"""What the README says of Spark works as it is written."""

import re
from pathlib import Path

import headrace
from headrace.testing import Broker

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_example_counts_what_was_sent(spark, spark_broker: Broker, capsys) -> None:
    [example] = re.findall(r"^```python\n(import headrace\.pipelines.*?)^```", README, re.M | re.S)
    address = spark_broker.bootstrap_servers
    with headrace.Producer(bootstrap_servers=address) as producer:
        for number in range(5):
            producer.send("orders", f"espresso {number}", key="customer-7")
    exec(compile(example.replace("127.0.0.1:9092", address), "README.md", "exec"), {})
    # Spark shows bytes in hexadecimal.
    assert re.search(r"\|\s*5\|", capsys.readouterr().out)
