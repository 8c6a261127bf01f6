"""The frames of real clients in tests/golden."""

import base64
import json
from pathlib import Path
from typing import NamedTuple

from headrace.protocol.apis import Api

DIRECTORY = Path(__file__).resolve().parent / "golden"
CLIENTS = ("aiokafka", "kafka-python", "kcat", "librdkafka")


class Frame(NamedTuple):
    """One request or response, without its length."""

    client: str
    api: Api
    version: int
    direction: str
    data: bytes


def load_frames(client: str) -> list[Frame]:
    lines = (DIRECTORY / f"{client}.jsonl").read_text().splitlines()
    return [
        Frame(
            client,
            Api[entry["api"]],
            entry["version"],
            entry["direction"],
            base64.b64decode(entry["frame"]),
        )
        for entry in map(json.loads, lines)
    ]
