"""Spark at brokers with TLS and logins: what it reads and writes, and secrets it does not show."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Producer
from headrace.cli.certificate_authority import CertificateAuthority
from headrace.testing import Broker
from headrace.testing.time_limits import scaled

RECORDS = 20
WRONG_PASSWORD = "wrong-and-not-to-be-shown"
DRIVER = (sys.executable, "-m", "tests.spark.secured_driver")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
def test_spark_reads_and_writes_secured_topics_and_shows_no_secret(tmp_path: Path) -> None:
    client = CertificateAuthority.create(tmp_path / "ca").issue_client("spark").read_text()
    certificate = client[client.index("-----BEGIN CERTIFICATE") :]
    key = client[: client.index("-----BEGIN CERTIFICATE")]
    directory = tmp_path / "shown"
    directory.mkdir()
    with Broker(security=True) as broker:
        for topic in ("orders", "written", "streamed", "copied"):
            broker.create_topic(topic)
        with Producer(**broker.client_options) as producer:
            for number in range(RECORDS):
                producer.send("orders", str(number))
        properties = broker.client_config
        password = properties["sasl.password"]
        (tmp_path / "user").write_text(properties["sasl.username"])
        references = {
            "sasl.password": "${env:BROKER_PASSWORD}",
            "sasl.username": f"${{file:{tmp_path}/user}}",
        }
        given = [
            {"kafka.ssl.keystore.key": key, "kafka.ssl.keystore.certificate.chain": certificate},
            {"kafka.sasl.password": WRONG_PASSWORD},
        ]
        driver = subprocess.run(
            (*DRIVER, str(directory), json.dumps(properties | references)),
            input=json.dumps(given),
            env=os.environ | {"BROKER_PASSWORD": password},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(120),
        )
    assert driver.returncode == 0, driver.stderr[-4000:]
    # Both sinks of the pipeline read all records; the topic of the first has them.
    assert json.loads(driver.stdout.splitlines()[-1]) == dict.fromkeys(
        ("batch", "written", "streamed", "copy", "files"), RECORDS
    )
    (directory / "output.txt").write_text(driver.stdout + driver.stderr)
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    for secret in (password, WRONG_PASSWORD, key.splitlines()[1][:40]):
        leaks = [str(path) for path, data in files.items() if secret.encode() in data]
        assert leaks == []
    # They were looked for where Spark shows options: their names are there.
    events = b"".join(data for path, data in files.items() if path.parent.parts[-2] == "events")
    for shown in (events, files[directory / "spark.log"], files[directory / "page-3.json"]):
        assert b"kafka.ssl.keystore.key=*********(redacted)" in shown
    assert b"refuses user" in files[directory / "shown.txt"]
