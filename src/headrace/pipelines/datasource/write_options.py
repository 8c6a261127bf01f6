"""Options of the data source for writes, with the names of Spark's Kafka sink."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace.client.options import ADMIN_OPTIONS, ProducerConfig, from_properties, producer_options
from headrace.client.producer_options import ACKS_ALL
from headrace.client.property_files import resolved_properties
from headrace.errors import ConfigError
from headrace.options import Bool, Given, Long, OneOf, Option, OptionTable, Text
from headrace.pipelines.datasource.errors import OptionError

_KAFKA = "kafka."
_GUARANTEE = "deliveryGuarantee"
_PREFIX = "transactionalIdPrefix"
# Delta Lake's names of the same two options.
_APP, _VERSION = "txnAppId", "txnVersion"
# Options of a streaming query, which Spark passes to the sink too, and one that is useless for its
# own Kafka sink too.
_IGNORED = ("checkpointlocation", "queryname", "outputmode", "includeheaders")

_REFUSED = {
    "kafka.key.serializer": "rows have bytes or text; make what you want in the query",
    "kafka.value.serializer": "rows have bytes or text; make what you want in the query",
    "kafka.transactional.id": f"every task has one of its own; {_PREFIX} says how they begin",
    "subscribe": "it belongs to reading; name the topic to write to with topic",
    "path": "records are written through a broker; name it with kafka.bootstrap.servers",
}
# The producer settings that weaken the delivery guarantee.
_PROMISES = ("acks", "enable.idempotence", "retries", "max.in.flight.requests.per.connection")

# Longer than a producer's default of a minute, because a task may make its rows slowly. Readers of
# committed records wait at most so long for a failed task that is not run again.
TRANSACTION_TIMEOUT_MS = 300_000
_TIMEOUT = "transaction.timeout.ms"


class Guarantee(StrEnum):
    """The delivery guarantee for rows of a task that Spark runs again."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


WRITE_OPTIONS = OptionTable(
    (
        Option(
            name="topic",
            type=Text(),
            default=None,
            doc="The topic of every row. It wins over the column.",
        ),
        Option(
            name=_GUARANTEE,
            type=OneOf({guarantee.value: guarantee for guarantee in Guarantee}, fold_case=True),
            default=None,
            default_text="`exactly-once`; `at-least-once` for batch writes",
            doc="See [below](#exactly-once).",
        ),
        Option(
            name=_PREFIX,
            type=Text(),
            default="headrace",
            doc="How the transactional ids and the groups of the sink begin, for access lists.",
        ),
        Option(
            name=_APP,
            type=Text(),
            default=None,
            doc="The name of a batch write that is to be [exactly once](#batch-writes),",
        ),
        Option(
            name=_VERSION,
            type=Long(0, 2**63 - 2),
            default=None,
            doc="and its number, which grows with each write.",
        ),
        Option(
            name="allowWeakDelivery",
            type=Bool(),
            default=False,
            doc="Take options of the producer that may lose or repeat rows.",
        ),
    ),
    owner='format "headrace"',
    refused=_REFUSED,
    refused_as="is not for writing",
    docs="docs/spark.md",
    error=OptionError,
    label="option ",
)
NAMES = tuple(WRITE_OPTIONS)


@dataclass(frozen=True)
class WriteOptions:
    """Checked options of a write, made by `stream_write_options` or `batch_write_options`.

    `client` has a producer's properties, with references in place of secrets that are kept
    elsewhere. `topic`, if given, is the topic of every row, and
    overrides the column. `app` and `version` name a batch write, as a query's id and the number of
    a micro-batch name a streaming one.
    """

    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    topic: str | None = None
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    prefix: str = "headrace"
    app: str | None = None
    version: int | None = None

    def producer(self) -> ProducerConfig:
        """The keyword arguments of a producer."""
        return from_properties(resolved_properties(self.client), "producer")

    def transactional_producer(self, transactional_id: str) -> ProducerConfig:
        """The keyword arguments of a producer of transactions."""
        config = self.producer()
        config.setdefault("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
        config["transactional_id"] = transactional_id
        return config

    def cluster(self) -> dict[str, str]:
        """The properties common to all clients, for other clients of the same brokers."""
        common = {name for option in ADMIN_OPTIONS.values() for name in option.properties}
        return {name: text for name, text in self.client.items() if name in common}


def stream_write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a streaming write, which is exactly once by default.

    >>> stream_write_options({"topic": "orders", "kafka.linger.ms": "20"}).client
    {'linger.ms': '20'}
    >>> stream_write_options({"topics": "orders"})
    Traceback (most recent call last):
    headrace.pipelines.datasource.errors.OptionError: unknown option 'topics' of format \
"headrace"; did you mean topic?
    """
    own, client = _split_options(given)
    for name in (_APP, _VERSION):
        if name in own.names:
            raise OptionError(
                f"option {name} is for batch writes: a streaming query and its batches have names"
                " of their own; leave it out"
            )
    return _settled(own, client, Guarantee.EXACTLY_ONCE)


def batch_write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a batch write: exactly once if it has a name, else at least once."""
    own, client = _split_options(given)
    named = [name for name in (_APP, _VERSION) if name in own.names]
    if len(named) == 1:
        raise OptionError(f"options {_APP} and {_VERSION} name a write together; give both")
    if not named:
        if own.values[_GUARANTEE] is Guarantee.EXACTLY_ONCE:
            raise OptionError(
                f"a batch write is exactly once if it has a name, by which a second try finds the"
                f" first: give {_APP} (who writes) and {_VERSION} (a number that grows)"
            )
        return _settled(own, client, Guarantee.AT_LEAST_ONCE)
    settled = _settled(own, client, Guarantee.EXACTLY_ONCE)
    if settled.guarantee is not Guarantee.EXACTLY_ONCE:
        raise OptionError(f"options {_APP} and {_VERSION} are for exactly once; leave them out")
    app = own.values[_APP]
    if not app:
        raise OptionError(f"option {_APP} is empty; say who writes")
    return replace(settled, app=app, version=own.values[_VERSION])


def _split_options(given: Mapping[str, str]) -> tuple[Given, dict[str, str]]:
    """The options of the sink, and the properties of the producer."""
    own: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, text in given.items():
        WRITE_OPTIONS.refuse(name)
        folded = name.lower()
        if folded.startswith(_KAFKA):
            client[folded.removeprefix(_KAFKA)] = text
        elif folded not in _IGNORED:
            own[name] = text
    return WRITE_OPTIONS.parse(own, fold_case=True), client


def _settled(own: Given, client: Mapping[str, str], default: Guarantee) -> WriteOptions:
    topic, prefix = own.values["topic"], own.values[_PREFIX]
    if topic == "":
        raise OptionError("option topic is empty; name a topic, or leave it out")
    is_weak = _check_client(client, own.values["allowWeakDelivery"])
    guarantee = own.values[_GUARANTEE] or (Guarantee.AT_LEAST_ONCE if is_weak else default)
    if is_weak and guarantee is Guarantee.EXACTLY_ONCE:
        raise OptionError(f"{_weak(client)} rows cannot be written exactly once; leave that out")
    if _TIMEOUT in client and guarantee is not Guarantee.EXACTLY_ONCE:
        raise OptionError(
            f"option {_KAFKA}{_TIMEOUT} is about transactions, which {guarantee} does without;"
            " leave it out"
        )
    if not prefix:
        raise OptionError(f"option {_PREFIX} is empty; leave it out")
    return WriteOptions(client, topic, guarantee, prefix)


def _check_client(client: Mapping[str, str], is_weak_allowed: bool) -> bool:
    """Check the producer's properties; return whether its delivery is weak, and that is allowed.

    A weak producer may lose or repeat records silently.
    """
    try:
        settled = producer_options(**from_properties(resolved_properties(client), "producer"))
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
