"""The options of a write: texts under the names of Spark's Kafka sink in, checked values out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.client.options import ProducerConfig, from_properties, producer_options
from headrace.client.options_table import hint
from headrace.client.producer_options import ACKS_ALL
from headrace.errors import ConfigError
from headrace.pipelines.source.failures import OptionError

_KAFKA = "kafka."
NAMES = ("topic", "allowWeakDelivery")
# Options of a streaming query, which Spark hands to the sink too, and one that its own Kafka sink
# takes and does not need.
_IGNORED = ("checkpointlocation", "queryname", "outputmode", "includeheaders")

_REFUSED = {
    "kafka.key.serializer": "rows have bytes or text; make what you want in the query",
    "kafka.value.serializer": "rows have bytes or text; make what you want in the query",
    "subscribe": "it belongs to reading; name the topic to write to with topic",
    "path": "records are written through a broker; name it with kafka.bootstrap.servers",
}
# What a producer's promise depends on.
_PROMISES = ("acks", "enable.idempotence", "retries", "max.in.flight.requests.per.connection")


@dataclass(frozen=True)
class WriteOptions:
    """Where rows go and how; `write_options` makes it, and what it holds needs no more checks.

    `client` has a producer's properties. `topic`, if it is given, is that of every row, whatever a
    column says.
    """

    client: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None

    def producer(self) -> ProducerConfig:
        """The keyword arguments of the producer."""
        return from_properties(self.client, "producer")


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write that is given these; OptionError says which is wrong and why.

    >>> write_options({"topic": "orders", "kafka.linger.ms": "20"}).client
    {'linger.ms': '20'}
    >>> write_options({"topics": "orders"})
    Traceback (most recent call last):
    headrace.pipelines.source.failures.OptionError: unknown option 'topics' of format "headrace"; \
did you mean topic?
    """
    texts: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, text in given.items():
        folded = name.lower()
        if folded in _REFUSED:
            raise OptionError(f"option {name} is not for writing: {_REFUSED[folded]}")
        if folded.startswith(_KAFKA):
            client[folded.removeprefix(_KAFKA)] = text
        elif folded not in _IGNORED:
            texts[_known(name)] = text.strip()
    if texts.get("topic") == "":
        raise OptionError("option topic is empty; name a topic, or leave it out")
    options = WriteOptions(client, texts.get("topic"))
    _check_client(options, _flag(texts, "allowWeakDelivery"))
    return options


def _known(name: str) -> str:
    known = {one.lower(): one for one in NAMES}
    if name.lower() not in known:
        near = hint(name, NAMES) or "; docs/spark.md lists them all"
        raise OptionError(f'unknown option {name!r} of format "headrace"{near}')
    return known[name.lower()]


def _check_client(options: WriteOptions, is_weak_allowed: bool) -> None:
    """Refuse what a producer does not know, and what would lose or repeat records in silence."""
    try:
        settled = producer_options(**options.producer())
    except ConfigError as error:
        raise OptionError(f"{error} (given with the prefix {_KAFKA})") from None
    if is_weak_allowed or (settled.acks == ACKS_ALL and settled.enable_idempotence):
        return
    reasons = [
        f"{_KAFKA}{name}={options.client[name]}" for name in _PROMISES if name in options.client
    ]
    raise OptionError(
        f"with {' and '.join(reasons)} rows that Spark counts as written may be lost or repeated;"
        " leave that out, or say that you accept it with option allowWeakDelivery true"
    )


def _flag(texts: Mapping[str, str], name: str) -> bool:
    text = texts.get(name, "false").lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} cannot be {texts[name]!r}: it is true or false")
    return text == "true"
