"""Settings of encryption at rest, which are broker settings too."""

from dataclasses import dataclass

from headrace.options import Bool, Int, Long, Text, setting


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class EncryptionConfig:
    """Settings of the keys that encrypted topics are written and read with."""

    encryption_data_key_max_age_ms: int = setting(
        Long(1000),
        86_400_000,
        doc="How long one data key encrypts the records of a partition before a new key is made.",
    )
    encryption_enable: bool = setting(
        Bool(),
        False,
        dynamic=True,
        doc="Default of the topic setting `encryption.enable`.",
    )
    encryption_key_command_timeout_ms: int = setting(
        Int(100, 300_000),
        10_000,
        doc="How long the command of `encryption.key.source` may take before it is stopped.",
    )
    encryption_key_id: str = setting(
        Text(),
        "",
        doc="The key of `encryption.key.source` that encrypts. Without it the last one does; the"
        " others decrypt what was written under them.",
    )
    encryption_key_refresh_ms: int = setting(
        Long(100),
        60_000,
        doc="How often `encryption.key.source` is read again, so that a new key is known without a"
        " restart.",
    )
    encryption_key_source: str = setting(
        Text(),
        "",
        doc="Where the key-encryption keys are: `file:PATH`, which only its owner may read;"
        " `env:NAME`, a variable of the environment; or `command:PROGRAM ARGUMENTS`, whose output"
        " they are. `headrace keys create` makes such a file. Every broker of a cluster needs the"
        " same keys.",
    )
