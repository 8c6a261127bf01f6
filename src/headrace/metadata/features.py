"""Feature levels: those of a cluster, and the levels that this version supports.

Rule: the levels of a cluster are FeatureLevelRecords in its metadata log, so that every node agrees
on them. They change only by UpdateFeatures: a node that supports more waits for that. A node that
reads a level it does not support stops. `kraft.version` is the exception: its level is in control
records of the quorum.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from headrace.protocol.schema import Message

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
TRANSACTION_VERSION = "transaction.version"
ELR_VERSION = "eligible.leader.replicas.version"
GROUP_VERSION = "group.version"


class VersionRange(NamedTuple):
    """The levels of a feature that a node supports, from `min` to `max`."""

    min: int
    max: int

    def includes(self, level: int) -> bool:
        return self.min <= level <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


Ranges = Mapping[str, VersionRange]

# The range of a feature that a node does not name: it can only be off.
UNSUPPORTED = VersionRange(0, 0)

# From 17 on brokers register with their directories, which show that a disk was replaced.
_METADATA_VERSION_MIN = 17
METADATA_VERSION_MAX = 30
# From this level on records have the full directories of a broker.
CORDONED_DIRECTORIES_SINCE = 30

# The levels that added fields to records: a log written at such a level, or above, may have fields
# that are lost below it.
_METADATA_CHANGES = frozenset({17, 23, 30})

# From 23 on records of partitions have room for eligible leader replicas (KIP-966).
_ELR_METADATA_VERSION_MIN = 23

# The levels this version supports. Features of Kafka 4.3 that are not here are off: share.version
# (KIP-932) and streams.version (KIP-1071).
SUPPORTED: Ranges = MappingProxyType(
    {
        KRAFT_VERSION: VersionRange(0, 1),
        METADATA_VERSION: VersionRange(_METADATA_VERSION_MIN, METADATA_VERSION_MAX),
        TRANSACTION_VERSION: VersionRange(0, 2),
        ELR_VERSION: VersionRange(0, 1),
        GROUP_VERSION: VersionRange(0, 1),
    }
)

# What brokers register beside features: which records of the metadata log they can read. Kafka has
# those of security at every level of `metadata.version` that is supported here, and nodes of
# headrace 0.1 support these levels without them.
RECORDS_RANGE = "headrace.records"
_SECURITY_RECORDS_SINCE = 1
REGISTERED_RANGES: Ranges = MappingProxyType({**SUPPORTED, RECORDS_RANGE: VersionRange(0, 1)})

# The levels of a cluster whose log was written before levels were recorded.
BOOTSTRAP_LEVELS: Mapping[str, int] = MappingProxyType(
    {METADATA_VERSION: METADATA_VERSION_MAX, TRANSACTION_VERSION: 2}
)

# The levels of a new cluster. In older clusters a new feature is off until it is raised.
NEW_CLUSTER_LEVELS: Mapping[str, int] = MappingProxyType(
    {**BOOTSTRAP_LEVELS, ELR_VERSION: 1, GROUP_VERSION: 1}
)

# The ranges of a broker that registers without ranges: its version is from before levels were
# recorded, and it acts by `BOOTSTRAP_LEVELS` whatever the log has.
_DEFAULT_RANGES: Ranges = MappingProxyType(
    {name: VersionRange(level, level) for name, level in BOOTSTRAP_LEVELS.items()}
    | {KRAFT_VERSION: VersionRange(0, 1)}
)

# The versions of records by the level of `metadata.version` from which on they are written.
_RECORD_VERSIONS: dict[type[Message], tuple[tuple[int, int], ...]] = {
    BrokerRegistrationChangeRecord: ((30, 3), (17, 2)),
    PartitionChangeRecord: ((23, 2), (17, 1)),
    PartitionRecord: ((23, 2), (17, 1)),
    RegisterBrokerRecord: ((30, 4), (17, 3)),
}


def levels_of(features: Mapping[str, int]) -> Mapping[str, int]:
    """The levels of a cluster with the features of its image."""
    return features if METADATA_VERSION in features else BOOTSTRAP_LEVELS


def bootstrap_records(
    features: Mapping[str, int], *, new_cluster: bool
) -> tuple[FeatureLevelRecord, ...]:
    """The first records of a log without levels, `metadata.version` first; else none."""
    if METADATA_VERSION in features:
        return ()
    levels = NEW_CLUSTER_LEVELS if new_cluster else BOOTSTRAP_LEVELS
    return tuple(
        FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()
    )


def missing_dependency(levels: Mapping[str, int]) -> tuple[str, str] | None:
    """A feature whose level depends on a level that is not set, and the reason; None if none."""
    if levels.get(ELR_VERSION, 0) > 0 and levels[METADATA_VERSION] < _ELR_METADATA_VERSION_MIN:
        return ELR_VERSION, f"it needs {METADATA_VERSION} at level {_ELR_METADATA_VERSION_MIN}"
    return None


def supported_ranges(ranges: Ranges) -> Ranges:
    """The levels a broker supports, given the ranges that it registered with."""
    return ranges or _DEFAULT_RANGES


def unsupported_reason(ranges: Ranges, name: str, level: int) -> str | None:
    """The reason why a node does not support a level of a feature, None if it does."""
    supported = ranges.get(name, UNSUPPORTED)
    if supported.includes(level):
        return None
    if supported.max == 0:
        return "does not support this feature"
    return f"supports only versions {supported}"


def check_security_records(brokers: Mapping[int, Ranges]) -> None:
    """Raise KafkaError if a broker stops at records of ACLs, roles, quotas, users and tokens.

    `brokers` are the ranges that each has registered with.
    """
    old = [
        broker_id
        for broker_id, ranges in brokers.items()
        if not ranges.get(RECORDS_RANGE, UNSUPPORTED).includes(_SECURITY_RECORDS_SINCE)
    ]
    if old:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"broker {', '.join(map(str, sorted(old)))} has a version of headrace that cannot read"
            " ACLs, roles, quotas, users and tokens, and would stop",
            advice="upgrade it first, or unregister it",
        )


def loses_metadata(level: int, target: int) -> bool:
    """Whether records written at `level` of `metadata.version` have fields that `target` lacks."""
    return any(target < change <= level for change in _METADATA_CHANGES)


def record_version(record_type: type[Message], metadata_version: int) -> int:
    """The version of a record type that is written at a level of `metadata.version`."""
    for since, version in _RECORD_VERSIONS.get(record_type, ()):
        if metadata_version >= since:
            return version
    return record_type.versions[1]
