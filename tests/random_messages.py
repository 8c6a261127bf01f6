"""Messages with random values in every field, for tests of codecs and of brokers."""

from random import Random
from typing import Any

from headrace.protocol.schema import OWN_TAG_MIN, FieldSpec, Struct

BOUNDS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
# kio converts these numbers to enums, durations and dates, so its reader only accepts some.
NARROW = {"error_code": (0, 100), "timestamp": (0, 2**40), "log_append_time_ms": (0, 2**40)}


def random_value(
    rng: Random, name: str, spec: FieldSpec, version: int, *, is_kafkas: bool = False
) -> Any:
    if spec.struct is not None:
        return random_struct(rng, spec.struct, version, is_kafkas=is_kafkas)
    match spec.kind:
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.uniform(-1e9, 1e9)
        case "string":
            return "".join(rng.choice("aZ09._-é漢") for _ in range(rng.choice((0, 1, 5, 200))))
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 100, 5000)))
        case "uuid":
            return rng.randbytes(16)
    low, high = BOUNDS[spec.kind]
    if name in NARROW or name.endswith(("_ms", "error_code")):
        narrow = NARROW["error_code"] if name.endswith("error_code") else (0, 2**31 - 1)
        low, high = NARROW.get(name, narrow)
        high = min(high, BOUNDS[spec.kind][1])
    return rng.choice((low, high, rng.randint(low, high)))


def random_struct(rng: Random, cls: type[Struct], version: int, *, is_kafkas: bool = False) -> Any:
    """A struct with random values; if `is_kafkas`, without the fields that Kafka does not have."""
    values: dict[str, Any] = {}
    for name, spec in cls.__specs__.items():
        if not spec.versions[0] <= version <= spec.versions[1]:
            continue
        if is_kafkas and spec.tag is not None and spec.tag >= OWN_TAG_MIN:
            continue
        nullable = spec.nullable is not None and spec.nullable[0] <= version <= spec.nullable[1]
        if nullable and rng.random() < 0.2:
            values[name] = None
        elif spec.tag is not None and rng.random() < 0.4:
            pass
        elif spec.is_array:
            values[name] = [
                random_value(rng, name, spec, version, is_kafkas=is_kafkas)
                for _ in range(rng.randrange(4))
            ]
        elif spec.kind in ("bytes", "records") and nullable is False and spec.default is None:
            values[name] = b""
        else:
            values[name] = random_value(rng, name, spec, version, is_kafkas=is_kafkas)
    return cls(**values)


def varied(rng: Random, message: Struct, version: int, rate: float = 0.15) -> Any:
    """A copy of a sensible message with some of its values replaced by random ones."""
    values: dict[str, Any] = {}
    for name, spec in message.__specs__.items():
        if not spec.versions[0] <= version <= spec.versions[1]:
            continue
        value = getattr(message, name)
        if isinstance(value, Struct):
            value = varied(rng, value, version, rate)
        elif isinstance(value, list) and spec.struct is not None:
            value = [varied(rng, entry, version, rate) for entry in value]
            value *= rng.choice((0, 2, 50)) if rng.random() < rate / 3 else 1
        elif isinstance(value, list):
            if rng.random() < rate:
                value = [random_value(rng, name, spec, version) for _ in range(rng.randrange(3))]
        elif rng.random() < rate and value is not None:
            value = random_value(rng, name, spec, version)
        values[name] = value
    return type(message)(**values)
