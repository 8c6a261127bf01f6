"""Feature levels: what of a cluster is switched on, and what this version knows of each feature.

Rule: the levels of a cluster are FeatureLevelRecords in its metadata log, so that every node agrees
on them, and they change only when somebody asks for it: a node that knows more waits until then. A
node that meets a level it does not know stops. `kraft.version` is the exception: the quorum's own
control records tell it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

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


class VersionRange(NamedTuple):
    """The levels of a feature that a node supports, from `min` to `max`."""

    min: int
    max: int

    def includes(self, level: int) -> bool:
        return self.min <= level <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


Ranges = Mapping[str, VersionRange]

# Of a feature that a node does not name: it can only be off.
UNSUPPORTED = VersionRange(0, 0)

# From 17 on brokers register with their directories, without which it is not known whose disk was
# replaced.
_METADATA_VERSION_MIN = 17
METADATA_VERSION_MAX = 30
# From here on the directories of a broker that take no records are told.
CORDONED_DIRECTORIES_SINCE = 30

# The levels that changed what records say: a log that is written at one of them, or above, may have
# what is lost below.
_METADATA_CHANGES = frozenset({17, 23, 30})

# From 23 on records of partitions have room for eligible leader replicas (KIP-966).
_ELR_METADATA_VERSION_MIN = 23

# What this version supports. Features of Kafka 4.3 that are not here, and so are off: group.version
# (KIP-848), share.version (KIP-932) and streams.version (KIP-1071).
SUPPORTED: Ranges = MappingProxyType(
    {
        KRAFT_VERSION: VersionRange(0, 1),
        METADATA_VERSION: VersionRange(_METADATA_VERSION_MIN, METADATA_VERSION_MAX),
        TRANSACTION_VERSION: VersionRange(0, 2),
        ELR_VERSION: VersionRange(0, 1),
    }
)

# The levels of a cluster whose log is from before there were levels.
BOOTSTRAP_LEVELS: Mapping[str, int] = MappingProxyType(
    {METADATA_VERSION: METADATA_VERSION_MAX, TRANSACTION_VERSION: 2}
)

# The levels of a new cluster. One that is older than a feature has it off until it is raised.
NEW_CLUSTER_LEVELS: Mapping[str, int] = MappingProxyType({**BOOTSTRAP_LEVELS, ELR_VERSION: 1})

# A broker that tells no ranges is of a version before there were levels. It acts by those of
# `BOOTSTRAP_LEVELS`, whatever the log says.
_UNTOLD: Ranges = MappingProxyType(
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
    """The levels of a cluster by the features of its image."""
    return features if METADATA_VERSION in features else BOOTSTRAP_LEVELS


def bootstrap_records(
    features: Mapping[str, int], *, new_cluster: bool
) -> tuple[FeatureLevelRecord, ...]:
    """The records that a log without levels needs, `metadata.version` first."""
    if METADATA_VERSION in features:
        return ()
    levels = NEW_CLUSTER_LEVELS if new_cluster else BOOTSTRAP_LEVELS
    return tuple(
        FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()
    )


def missing_dependency(levels: Mapping[str, int]) -> tuple[str, str] | None:
    """A feature whose level needs another one that is not there, and the reason; None if none."""
    if levels.get(ELR_VERSION, 0) > 0 and levels[METADATA_VERSION] < _ELR_METADATA_VERSION_MIN:
        return ELR_VERSION, f"it needs {METADATA_VERSION} at level {_ELR_METADATA_VERSION_MIN}"
    return None


def ranges_told(ranges: Ranges) -> Ranges:
    """The ranges a broker supports, by those it registered with."""
    return ranges or _UNTOLD


def unsupported(ranges: Ranges, name: str, level: int) -> str | None:
    """Why a node does not support a level of a feature, None if it does."""
    supported = ranges.get(name, UNSUPPORTED)
    if supported.includes(level):
        return None
    if supported.max == 0:
        return "does not support this feature"
    return f"supports only versions {supported}"


def loses_metadata(level: int, target: int) -> bool:
    """Whether records of `metadata.version` `level` may say what those of a lower one cannot."""
    return any(target < change <= level for change in _METADATA_CHANGES)


def record_version(record_type: type[Message], metadata_version: int) -> int:
    """The version at which records of a type are written at a level of `metadata.version`."""
    for since, version in _RECORD_VERSIONS.get(record_type, ()):
        if metadata_version >= since:
            return version
    return record_type.versions[1]
