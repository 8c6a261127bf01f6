"""The options of a write: texts under the names of Spark's Kafka sink in, checked values out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace.client.options import ADMIN_OPTIONS, ProducerConfig, from_properties, producer_options
from headrace.client.producer_options import ACKS_ALL
from headrace.errors import ConfigError
from headrace.pipelines.source.errors import OptionError
from headrace.pipelines.source.texts import Texts

_KAFKA = "kafka."
_GUARANTEE = "deliveryGuarantee"
_PREFIX = "transactionalIdPrefix"
# The names under which Delta Lake takes the same two.
_APP, _VERSION = "txnAppId", "txnVersion"
NAMES = ("topic", _GUARANTEE, _PREFIX, _APP, _VERSION, "allowWeakDelivery")
# Options of a streaming query, which Spark hands to the sink too, and one that its own Kafka sink
# takes and does not need.
_IGNORED = ("checkpointlocation", "queryname", "outputmode", "includeheaders")

_REFUSED = {
    "kafka.key.serializer": "rows have bytes or text; make what you want in the query",
    "kafka.value.serializer": "rows have bytes or text; make what you want in the query",
    "kafka.transactional.id": f"every task has one of its own; {_PREFIX} says how they begin",
    "subscribe": "it belongs to reading; name the topic to write to with topic",
    "path": "records are written through a broker; name it with kafka.bootstrap.servers",
}
# What a producer's promise depends on.
_PROMISES = ("acks", "enable.idempotence", "retries", "max.in.flight.requests.per.connection")

# Longer than a producer's own minute, for a task may be slow to make its rows. Readers of committed
# records wait at most so long for a task that nobody runs again.
TRANSACTION_TIMEOUT_MS = 300_000
_TIMEOUT = "transaction.timeout.ms"


class Guarantee(StrEnum):
    """How often a row is written, if Spark runs its task again."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True)
class WriteOptions:
    """Where rows go and how; one of the functions here makes it, and what it holds is checked.

    `client` has a producer's properties. `topic`, if it is given, is that of every row, whatever a
    column says. `app` and `version` name a batch write, as a query's id and the number of a
    micro-batch name a streaming one.
    """

    client: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    prefix: str = "headrace"
    app: str | None = None
    version: int | None = None

    def producer(self) -> ProducerConfig:
        """The keyword arguments of a producer."""
        return from_properties(self.client, "producer")

    def transactional_producer(self, transactional_id: str) -> ProducerConfig:
        """The keyword arguments of a producer of transactions."""
        config = self.producer()
        config.setdefault("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
        config["transactional_id"] = transactional_id
        return config

    def cluster(self) -> dict[str, str]:
        """The properties that are not only a producer's, for others who ask the same brokers."""
        common = {one.kafka_name for one in ADMIN_OPTIONS.values()}
        return {name: text for name, text in self.client.items() if name in common}


def stream_write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a streaming write, which is exactly once unless it is told otherwise.

    >>> stream_write_options({"topic": "orders", "kafka.linger.ms": "20"}).client
    {'linger.ms': '20'}
    >>> stream_write_options({"topics": "orders"})
    Traceback (most recent call last):
    headrace.pipelines.source.errors.OptionError: unknown option 'topics' of format "headrace"; \
did you mean topic?
    """
    texts, client = _sorted_out(given)
    for name in (_APP, _VERSION):
        if name in texts:
            raise OptionError(
                f"option {name} is for batch writes: a streaming query and its batches have names"
                " of their own; leave it out"
            )
    return _settled(texts, client, Guarantee.EXACTLY_ONCE)


def batch_write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a batch write: exactly once if it has a name, else at least once."""
    texts, client = _sorted_out(given)
    named = [name for name in (_APP, _VERSION) if name in texts]
    if len(named) == 1:
        raise OptionError(f"options {_APP} and {_VERSION} name a write together; give both")
    if not named:
        if _guarantee(texts, Guarantee.AT_LEAST_ONCE) is Guarantee.EXACTLY_ONCE:
            raise OptionError(
                f"a batch write is exactly once if it has a name, by which a second try finds the"
                f" first: give {_APP} (who writes) and {_VERSION} (a number that grows)"
            )
        return _settled(texts, client, Guarantee.AT_LEAST_ONCE)
    settled = _settled(texts, client, Guarantee.EXACTLY_ONCE)
    if settled.guarantee is not Guarantee.EXACTLY_ONCE:
        raise OptionError(f"options {_APP} and {_VERSION} are for exactly once; leave them out")
    app = texts[_APP]
    if not app:
        raise OptionError(f"option {_APP} is empty; say who writes")
    return replace(settled, app=app, version=_version(texts))


def _sorted_out(given: Mapping[str, str]) -> tuple[Texts, dict[str, str]]:
    """The options of the sink, and the properties of the producer."""
    own: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, text in given.items():
        folded = name.lower()
        if folded in _REFUSED:
            raise OptionError(f"option {name} is not for writing: {_REFUSED[folded]}")
        if folded.startswith(_KAFKA):
            client[folded.removeprefix(_KAFKA)] = text
        elif folded not in _IGNORED:
            own[name] = text
    return Texts(own, NAMES), client


def _settled(texts: Texts, client: Mapping[str, str], default: Guarantee) -> WriteOptions:
    topic = texts.get("topic")
    if topic == "":
        raise OptionError("option topic is empty; name a topic, or leave it out")
    is_weak = _check_client(client, texts.flag("allowWeakDelivery", default=False))
    guarantee = _guarantee(texts, Guarantee.AT_LEAST_ONCE if is_weak else default)
    if is_weak and guarantee is Guarantee.EXACTLY_ONCE:
        raise OptionError(f"{_weak(client)} rows cannot be written exactly once; leave that out")
    if _TIMEOUT in client and guarantee is not Guarantee.EXACTLY_ONCE:
        raise OptionError(
            f"option {_KAFKA}{_TIMEOUT} is about transactions, which {guarantee} does without;"
            " leave it out"
        )
    return WriteOptions(client, topic, guarantee, _prefix(texts))


def _guarantee(texts: Texts, default: Guarantee) -> Guarantee:
    return Guarantee(texts.choice(_GUARANTEE, [one.value for one in Guarantee], default.value))


def _prefix(texts: Texts) -> str:
    prefix = texts.get(_PREFIX, WriteOptions.prefix)
    if not prefix:
        raise OptionError(f"option {_PREFIX} is empty; leave it out")
    return prefix


def _version(texts: Texts) -> int:
    text = texts[_VERSION]
    if not text.isdecimal() or int(text) >= 2**63 - 1:
        raise texts.refusal(_VERSION, "it is a whole number from 0 that grows with each write")
    return int(text)


def _check_client(client: Mapping[str, str], is_weak_allowed: bool) -> bool:
    """Refuse what a producer does not know, and what would lose or repeat records in silence.

    Returns whether it may do that in the end, because that is allowed.
    """
    try:
        settled = producer_options(**from_properties(client, "producer"))
    except ConfigError as error:
        raise OptionError(f"{error} (given with the prefix {_KAFKA})") from None
    if settled.acks == ACKS_ALL and settled.enable_idempotence:
        return False
    if not is_weak_allowed:
        raise OptionError(
            f"{_weak(client)} rows that Spark counts as written may be lost or repeated;"
            " leave that out, or say that you accept it with option allowWeakDelivery true"
        )
    return True


def _weak(client: Mapping[str, str]) -> str:
    reasons = [f"{_KAFKA}{name}={client[name]}" for name in _PROMISES if name in client]
    return f"with {' and '.join(reasons)}"
