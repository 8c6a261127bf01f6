"""Options of a producer: acknowledgement, batching, retries, partitioning, serializers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.client.common_options import (
    CommonConfig,
    CommonOptions,
    client_table,
    settle_common,
)
from headrace.client.serializers import SERIALIZERS, Serializer
from headrace.errors import ConfigError
from headrace.options import INT_MAX, Bool, Int, Long, OneOf, Text, option
from headrace.protocol.compression import Compression

# A function of topic, key (None if there is none) and partition count that returns a partition.
PartitionerFunction: TypeAlias = Callable[[str, bytes | None, int], int]
SerializerName: TypeAlias = Literal["string", "json"]

ACKS_ALL = -1
# A broker remembers the last five batches of a producer in each partition, and recognizes a
# duplicate only among those.
IDEMPOTENT_IN_FLIGHT_MAX = 5

_LEVELS = {
    Compression.GZIP: (1, 9),
    Compression.LZ4: (1, 17),
    Compression.ZSTD: (-131_072, 22),
}

_SERIALIZERS = OneOf(
    SERIALIZERS,
    otherwise="a function that takes the value and returns bytes",
    takes_callable=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(CommonOptions):
    """The checked options of a producer, as `producer_options` makes them."""

    acks: int = option(
        OneOf({"all": ACKS_ALL, 1: 1, 0: 0}, {-1: "all", "-1": "all", "1": 1, "0": 0}),
        "all",
        kafka="acks",
        doc='Who must have a record before `send` has succeeded: every in-sync replica ("all"),'
        " the partition's leader (1), or nobody (0: no answer comes, and losses go unnoticed).",
    )
    enable_idempotence: bool = option(
        Bool(),
        True,
        kafka="enable.idempotence",
        doc="Retries neither duplicate nor reorder records within a partition. It needs"
        ' `acks="all"`, at most 5 requests in flight and retries. If one of these is set otherwise'
        " and this is not asked for, it is off.",
    )
    transactional_id: str | None = option(
        Text(optional=True),
        None,
        kafka="transactional.id",
        doc="The name under which this producer's transactions are known, across restarts; with it"
        " records are sent in transactions only. A new producer of the same name aborts what the"
        " last one has left open, and fences it.",
    )
    transaction_timeout_ms: int = option(
        Int(1),
        60_000,
        kafka="transaction.timeout.ms",
        doc="How long a transaction may be open before its coordinator aborts it and fences the"
        " producer. The broker's `transaction.max.timeout.ms` is the most.",
    )
    compression_type: Compression = option(
        OneOf({codec.name.lower(): codec for codec in Compression}),
        "none",
        kafka="compression.type",
        doc="The codec for batches.",
    )
    compression_level: int | None = option(
        Int(-131_072, 22, optional=True),
        None,
        kafka="compression.level",
        default_text="the codec's own",
        doc="How hard to compress: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22; the others have no"
        " levels. The property has librdkafka's name.",
    )
    batch_size: int = option(
        Int(0),
        262_144,
        kafka="batch.size",
        doc="Bytes of records, before compression, that are gathered for one partition before they"
        " are sent. 0 sends every record in a batch of its own. Kafka's default is 16384.",
    )
    linger_ms: int = option(
        Int(0),
        5,
        kafka="linger.ms",
        doc="How long a batch that is not full waits for more records.",
    )
    buffer_memory: int = option(
        Long(1),
        33_554_432,
        kafka="buffer.memory",
        doc="The most bytes of records that wait to be sent or acknowledged. When they are used up,"
        " `send` waits.",
    )
    max_block_ms: int = option(
        Long(0),
        60_000,
        kafka="max.block.ms",
        doc="How long `send` waits for room in the buffer (then `BufferExhausted`) or for a topic's"
        " metadata (then `TimedOut`).",
    )
    max_in_flight: int = option(
        Int(1),
        5,
        kafka="max.in.flight.requests.per.connection",
        aliases=("max_in_flight_requests_per_connection", "max_in_flight_requests"),
        doc="The most requests sent to one broker and not answered yet. More than 1 without"
        " idempotence may reorder records when one is retried.",
    )
    retries: int = option(
        Int(0),
        INT_MAX,
        kafka="retries",
        doc="How often a batch is sent again after an error that passes. `delivery_timeout_ms` is"
        " the better limit.",
    )
    delivery_timeout_ms: int = option(
        Int(1),
        120_000,
        kafka="delivery.timeout.ms",
        doc="How long after `send` its result is known at the latest, retries included. It must be"
        " at least `linger_ms` + `request_timeout_ms`; if only this one is given, the request"
        " timeout follows it.",
    )
    max_request_size: int = option(
        Int(1),
        1_048_576,
        kafka="max.request.size",
        doc="The largest record, and the largest batch before compression. The topic's"
        " `max.message.bytes` must allow it too.",
    )
    partitioner: str | PartitionerFunction = option(
        OneOf(
            {name: name for name in ("murmur2", "round_robin", "sticky")},
            {"murmur2_random": "murmur2", "roundrobin": "round_robin"},
            otherwise="a function (topic, key, partition_count) -> partition",
            takes_callable=True,
        ),
        "murmur2",
        kafka="partitioner.class",
        doc='Who chooses the partition of a record that names none. "murmur2": by the hash of the'
        " key, as Kafka's clients do, and for records without a key one partition per batch."
        ' "round_robin": each record the next partition, whatever its key. "sticky": one partition'
        " per batch, whatever the key. The key a function is given is serialized.",
    )
    key_serializer: Serializer | None = option(
        _SERIALIZERS,
        None,
        kafka="key.serializer",
        doc="Makes bytes of keys. Without one, keys are bytes, or text, which is encoded as UTF-8."
        " A key of None is never passed to it.",
    )
    value_serializer: Serializer | None = option(
        _SERIALIZERS,
        None,
        kafka="value.serializer",
        doc="Makes bytes of values. Without one, values are bytes, or text, which is encoded as"
        " UTF-8. A value of None (a tombstone) is never passed to it.",
    )

    @property
    def compression(self) -> Compression:
        """The codec for batches."""
        return self.compression_type


class ProducerConfig(CommonConfig, total=False):
    """The keyword arguments of a producer."""

    acks: Literal["all", -1, 0, 1]
    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int | None
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    max_in_flight: int
    max_in_flight_requests_per_connection: int
    max_in_flight_requests: int
    retries: int
    delivery_timeout_ms: int
    max_request_size: int
    partitioner: Literal["murmur2", "round_robin", "sticky"] | PartitionerFunction
    key_serializer: SerializerName | Serializer | None
    value_serializer: SerializerName | Serializer | None


PRODUCER_OPTIONS = client_table("Producer", ProducerOptions)


def settled_producer_options(given: dict[str, Any]) -> ProducerOptions:
    """The checked options of a producer; ConfigError names the invalid option and the reason."""
    values, names = PRODUCER_OPTIONS.check(given)
    if values["partitioner"] is None:
        raise PRODUCER_OPTIONS["partitioner"].refusal(None)
    settle_common(values, names, "producer")
    _settle_idempotence(values, names)
    _settle_delivery_timeout(values, names)
    _settle_sizes(values, names)
    _check_level(values)
    return ProducerOptions(**values)


def _settle_idempotence(values: dict[str, Any], given: set[str]) -> None:
    obstacles = []
    transactional = values["transactional_id"] is not None
    if transactional and not values["enable_idempotence"]:
        obstacles.append("enable_idempotence=True, not False")
    if values["acks"] != ACKS_ALL:
        obstacles.append(f'acks="all", not {values["acks"]}')
    if values["max_in_flight"] > IDEMPOTENT_IN_FLIGHT_MAX:
        obstacles.append(
            f"max_in_flight of at most {IDEMPOTENT_IN_FLIGHT_MAX}, not {values['max_in_flight']}"
        )
    if values["retries"] == 0:
        obstacles.append("retries of at least 1, not 0")
    if obstacles and transactional:
        raise ConfigError(
            f"transactions (transactional_id) need {' and '.join(obstacles)}; change that"
        )
    if not obstacles or not values["enable_idempotence"]:
        return
    if "enable_idempotence" in given:
        raise ConfigError(
            f"enable_idempotence=True needs {' and '.join(obstacles)};"
            " change that, or set enable_idempotence=False"
        )
    values["enable_idempotence"] = False


def _settle_delivery_timeout(values: dict[str, Any], given: set[str]) -> None:
    linger_ms, request_ms = values["linger_ms"], values["request_timeout_ms"]
    if values["delivery_timeout_ms"] >= linger_ms + request_ms:
        return
    if "delivery_timeout_ms" not in given:
        values["delivery_timeout_ms"] = linger_ms + request_ms
        return
    # Unlike Kafka: a single short timeout is enough; the other follows.
    room_ms = values["delivery_timeout_ms"] - linger_ms
    if "request_timeout_ms" not in given and room_ms > 0:
        values["request_timeout_ms"] = room_ms
        return
    raise ConfigError(
        f"delivery_timeout_ms ({values['delivery_timeout_ms']}) must be at least linger_ms"
        f" ({linger_ms}) + request_timeout_ms ({request_ms}); raise it, or lower those"
    )


def _settle_sizes(values: dict[str, Any], given: set[str]) -> None:
    for limit in ("max_request_size", "buffer_memory"):
        if values["batch_size"] <= values[limit]:
            continue
        if "batch_size" in given:
            raise ConfigError(
                f"batch_size ({values['batch_size']}) must be at most {limit} ({values[limit]});"
                f" lower it, or raise {limit}"
            )
        values["batch_size"] = values[limit]


def _check_level(values: dict[str, Any]) -> None:
    level, codec = values["compression_level"], values["compression_type"]
    if level is None:
        return
    name = codec.name.lower()
    if codec not in _LEVELS:
        raise ConfigError(f"compression_level cannot be {level}: {name!r} has no levels")
    least, most = _LEVELS[codec]
    if not least <= level <= most:
        raise ConfigError(
            f"compression_level cannot be {level}: {name} has the levels {least} to {most}"
        )
