"""Spark's own Kafka connector for comparisons: four jars, fetched once with Maven.

They are named individually, without their dependencies: the rest comes with Spark, and the newest
connector requires versions that were never published.
"""

import shutil
import subprocess
from pathlib import Path

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
DIRECTORY = Path(__file__).parent.parent / "build" / "kafka-connector"
_FETCH_S_MAX = 300


class ConnectorMissing(Exception):
    """The jars are not installed and cannot be fetched; the text says why."""


def connector_jars(directory: Path = DIRECTORY) -> list[Path]:
    """The jars, fetched if missing."""
    jars = [directory / _file_name(artifact) for artifact in ARTIFACTS]
    missing = [entry for entry, jar in zip(ARTIFACTS, jars, strict=True) if not jar.is_file()]
    if missing and shutil.which("mvn") is None:
        raise ConnectorMissing(
            "Spark's Kafka connector is fetched with Maven, which is not installed:"
            " sudo apt-get install -y maven"
        )
    for artifact in missing:
        _fetch(artifact, directory)
    return jars


def _file_name(artifact: str) -> str:
    _, name, version = artifact.split(":")
    return f"{name}-{version}.jar"


def _fetch(artifact: str, directory: Path) -> None:
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}:jar"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={directory}"],
            capture_output=True,
            text=True,
            timeout=_FETCH_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConnectorMissing(f"Maven did not fetch {artifact} in {_FETCH_S_MAX} s") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise ConnectorMissing(f"Maven cannot fetch {artifact}: {lines[0] if lines else 'no word'}")
