"""Settings of a broker under Kafka's property names, and a config made and checked of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import float_info
from typing import Any

from headrace.config.accepted import (
    LISTENER_PREFIX,
    SASL_MECHANISM_SETTINGS,
    find_setting,
    parse_values,
)
from headrace.config.authorization import AuthorizationConfig
from headrace.config.cluster import QuorumConfig, ReplicationConfig
from headrace.config.coordinators import CoordinatorConfig, TransactionConfig
from headrace.config.encryption import EncryptionConfig
from headrace.config.listeners import (
    ANY_ADDRESS,
    Listener,
    parse_advertised_listeners,
    parse_listeners,
)
from headrace.config.monitoring import MonitoringConfig
from headrace.config.properties import Properties
from headrace.config.quotas import QuotaConfig
from headrace.config.sasl import (
    BootstrapCredential,
    SaslConfig,
    check_node_logins,
    listener_sasl,
    parse_bootstrap_credentials,
)
from headrace.config.security import SecurityConfig, protocol_map, protocol_of_listener
from headrace.config.topic import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    DAY_MS,
    GZIP_LEVELS,
    LZ4_LEVELS,
    MIB,
    TIMESTAMP_TYPES,
    ZSTD_LEVELS,
    check_gzip_level,
)
from headrace.errors import ConfigError
from headrace.options import (
    INT_MAX,
    LONG_MAX,
    Bool,
    Float,
    Int,
    ListOf,
    Long,
    Option,
    Scope,
    Text,
    one_of,
    options_of,
    setting,
    suggestion,
)
from headrace.types import SecurityProtocol


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class CompactionConfig:
    """Settings of log compaction, and the defaults of compacted topics."""

    log_cleaner_backoff_ms: int = setting(
        Long(0),
        15_000,
        dynamic=True,
        doc="How long the broker waits before it looks again for logs to compact when there was"
        " nothing to do.",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        Long(MIB, INT_MAX),
        128 * MIB,
        dynamic=True,
        doc="Bytes of the table of keys that a compaction uses, 24 for each key. What it cannot"
        " hold is compacted in the next round.",
    )
    log_cleaner_delete_retention_ms: int = setting(
        Long(0),
        DAY_MS,
        dynamic=True,
        doc="Default of the topic setting `delete.retention.ms`.",
    )
    log_cleaner_enable: bool = setting(
        Bool(),
        True,
        doc="Whether this broker compacts its logs at all.",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        Float(0.1, 0.95),
        0.75,
        dynamic=True,
        doc="How full the table of keys may get; a fuller one holds more keys and finds them more"
        " slowly. Kafka's default is 0.9.",
    )
    log_cleaner_io_buffer_size: int = setting(
        Int(64 * 1024),
        512 * 1024,
        dynamic=True,
        doc="Bytes that a compaction reads and writes at once; a larger batch is read whole.",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        Float(1.0),
        float_info.max,
        dynamic=True,
        doc="The rate that compaction is held to, reading and writing together.",
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        Long(1),
        LONG_MAX,
        dynamic=True,
        doc="Default of the topic setting `max.compaction.lag.ms`.",
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        Float(0.0, 1.0),
        0.5,
        dynamic=True,
        doc="Default of the topic setting `min.cleanable.dirty.ratio`.",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        Long(0),
        0,
        dynamic=True,
        doc="Default of the topic setting `min.compaction.lag.ms`.",
    )


def _check_retention(value: int) -> int:
    if value == 0:
        raise ValueError("use -1 for no limit, or a time of at least 1")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(
    AuthorizationConfig,
    CompactionConfig,
    CoordinatorConfig,
    EncryptionConfig,
    MonitoringConfig,
    QuorumConfig,
    QuotaConfig,
    ReplicationConfig,
    SaslConfig,
    SecurityConfig,
    TransactionConfig,
):
    """Settings of a broker, and the defaults of its topics.

    The constructor takes values as they are; `broker_config` is where text from users is checked.
    Invariant: `base` is this config before its dynamic overrides, and None when there are none.
    """

    advertised_listeners: tuple[Listener, ...] | None = setting(
        ListOf(),
        None,
        convert=parse_advertised_listeners,
        doc="The addresses clients are told to connect to. Without it they are told `listeners`,"
        " with the port that was bound.",
    )
    auto_create_topics_enable: bool = setting(
        Bool(),
        True,
        doc="Whether asking for the metadata of an unknown topic creates it.",
    )
    broker_id: int = setting(
        Int(),
        -1,
        doc="Kafka's older name of `node.id`. -1 leaves it to that.",
    )
    broker_rack: str | None = setting(
        Text(),
        None,
        doc="The rack or zone of this broker, told to clients.",
    )
    compression_gzip_level: int = setting(
        Int(GZIP_LEVELS[0], GZIP_LEVELS[1]),
        -1,
        convert=check_gzip_level,
        dynamic=True,
        doc="Default of the topic setting `compression.gzip.level`.",
    )
    compression_lz4_level: int = setting(
        Int(LZ4_LEVELS[0], LZ4_LEVELS[1]),
        9,
        dynamic=True,
        doc="Default of the topic setting `compression.lz4.level`.",
    )
    compression_type: str = setting(
        one_of(*COMPRESSION_TYPES),
        "producer",
        dynamic=True,
        doc="Default of the topic setting `compression.type`.",
    )
    compression_zstd_level: int = setting(
        Int(ZSTD_LEVELS[0], ZSTD_LEVELS[1]),
        3,
        dynamic=True,
        doc="Default of the topic setting `compression.zstd.level`.",
    )
    connections_max_idle_ms: int = setting(
        Long(-1),
        600_000,
        doc="A connection that sends nothing for so long is closed. -1 keeps it for ever.",
    )
    default_replication_factor: int = setting(
        Int(1, 2**15 - 1),
        1,
        doc="Replicas of a new topic that does not say how many.",
    )
    delete_topic_enable: bool = setting(
        Bool(),
        True,
        doc="Whether topics may be deleted.",
    )
    fetch_max_bytes: int = setting(
        Int(1024),
        55 * MIB,
        doc="The most record bytes one fetch is answered with, whatever the client asks for.",
    )
    listeners: tuple[Listener, ...] = setting(
        ListOf(),
        (Listener("PLAINTEXT", "127.0.0.1", 9092),),
        convert=parse_listeners,
        doc="The addresses to listen on, as `PLAINTEXT://host:port`. An empty host is every"
        " interface; port 0 is any free port.",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        ListOf(choices=CLEANUP_POLICIES, may_be_empty=True),
        ("delete",),
        dynamic=True,
        doc="Default of the topic setting `cleanup.policy`.",
    )
    log_dir: tuple[str, ...] = setting(
        ListOf(),
        ("headrace-data",),
        doc="The data directory, if `log.dirs` is not given.",
    )
    log_dir_reserved_bytes: int = setting(
        Long(-1),
        -1,
        doc="Free bytes of each data directory that records may not use, so that a start,"
        " checkpoints, the metadata log and deletions work on a full disk. Below it records are"
        " refused, and other replicas lead. -1 is a 32nd of the disk, at most 16 MiB. A setting of"
        " headrace's own.",
    )
    log_dir_usage_warn_percent: int = setting(
        Int(1, 100),
        85,
        doc="The broker warns when so much of the disk of a data directory is used, in percent. A"
        " setting of headrace's own.",
    )
    log_dirs: tuple[str, ...] | None = setting(
        ListOf(),
        None,
        doc="The data directories, instead of `log.dir`. New partitions go to the one that holds"
        " the fewest.",
    )
    log_flush_interval_messages: int = setting(
        Long(1),
        LONG_MAX,
        dynamic=True,
        doc="Default of the topic setting `flush.messages`.",
    )
    log_flush_interval_ms: int | None = setting(
        Long(0),
        None,
        dynamic=True,
        inherits="log.flush.scheduler.interval.ms",
        doc="Default of the topic setting `flush.ms`.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        Int(0),
        60_000,
        doc="How often recovery points and log start offsets are written to their checkpoints.",
    )
    log_flush_scheduler_interval_ms: int = setting(
        Long(1),
        LONG_MAX,
        doc="How often the broker looks for logs whose `flush.ms` has passed.",
    )
    log_index_interval_bytes: int = setting(
        Int(0),
        4096,
        dynamic=True,
        doc="Default of the topic setting `index.interval.bytes`.",
    )
    log_index_size_max_bytes: int = setting(
        Int(4),
        10 * MIB,
        dynamic=True,
        doc="Default of the topic setting `segment.index.bytes`.",
    )
    log_message_timestamp_after_max_ms: int = setting(
        Long(0),
        3_600_000,
        dynamic=True,
        doc="Default of the topic setting `message.timestamp.after.max.ms`.",
    )
    log_message_timestamp_before_max_ms: int = setting(
        Long(0),
        LONG_MAX,
        dynamic=True,
        doc="Default of the topic setting `message.timestamp.before.max.ms`.",
    )
    log_message_timestamp_type: str = setting(
        one_of(*TIMESTAMP_TYPES),
        "CreateTime",
        dynamic=True,
        doc="Default of the topic setting `message.timestamp.type`.",
    )
    log_retention_bytes: int = setting(
        Long(-1),
        -1,
        dynamic=True,
        doc="Default of the topic setting `retention.bytes`.",
    )
    log_retention_check_interval_ms: int = setting(
        Long(1),
        300_000,
        doc="How often the broker looks for segments past their retention.",
    )
    log_retention_hours: int = setting(
        Int(-1),
        168,
        scale=3_600_000,
        convert=_check_retention,
        doc="Like `log.retention.ms` in hours, if neither that nor `log.retention.minutes` is set.",
    )
    log_retention_minutes: int | None = setting(
        Int(-1),
        None,
        scale=60_000,
        convert=_check_retention,
        inherits="log.retention.hours",
        doc="Like `log.retention.ms` in minutes, if that is not given.",
    )
    log_retention_ms: int | None = setting(
        Long(-1),
        None,
        dynamic=True,
        convert=_check_retention,
        inherits="log.retention.minutes",
        doc="Default of the topic setting `retention.ms`.",
    )
    log_roll_hours: int = setting(
        Int(1),
        168,
        scale=3_600_000,
        doc="Like `log.roll.ms` in hours, if that is not given.",
    )
    log_roll_jitter_hours: int = setting(
        Int(0),
        0,
        scale=3_600_000,
        doc="Like `log.roll.jitter.ms` in hours, if that is not given.",
    )
    log_roll_jitter_ms: int | None = setting(
        Long(0),
        None,
        dynamic=True,
        inherits="log.roll.jitter.hours",
        doc="Default of the topic setting `segment.jitter.ms`.",
    )
    log_roll_ms: int | None = setting(
        Long(1),
        None,
        dynamic=True,
        inherits="log.roll.hours",
        doc="Default of the topic setting `segment.ms`.",
    )
    log_scrub_bytes_per_second: int = setting(
        Long(1),
        4 * MIB,
        dynamic=True,
        doc="How many bytes of segments the broker reads a second to find damage. A setting"
        " of headrace's own.",
    )
    log_scrub_interval_ms: int = setting(
        Long(-1),
        604_800_000,
        dynamic=True,
        doc="How often the broker reads every segment and checks its records, to find damage while"
        " other replicas are intact, besides once after each start. 0 is all the time, -1 is never."
        " A setting of headrace's own.",
    )
    log_segment_bytes: int = setting(
        Int(MIB),
        1024 * MIB,
        dynamic=True,
        doc="Default of the topic setting `segment.bytes`.",
    )
    log_segment_delete_delay_ms: int = setting(
        Long(0),
        60_000,
        dynamic=True,
        doc="Default of the topic setting `file.delete.delay.ms`.",
    )
    max_connections: int = setting(
        Int(0),
        INT_MAX,
        dynamic=True,
        per_listener=True,
        doc="Connections the broker holds at once; past it further ones are closed. Also as"
        " `listener.name.NAME.max.connections`. Where there are several listeners, that of the"
        " brokers is always served: the connection of another that is silent for longest is closed"
        " for it.",
    )
    max_connections_per_ip: int = setting(
        Int(0),
        INT_MAX,
        dynamic=True,
        doc="Connections from one address; past it further ones are closed.",
    )
    max_in_flight_requests_per_connection: int = setting(
        Int(1, 100_000),
        100,
        doc="Requests of one connection the broker works on at once; past it the broker stops"
        " reading that socket. A setting of headrace's own.",
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        Int(0),
        1000,
        doc="Incremental fetch sessions the broker remembers.",
    )
    message_max_bytes: int = setting(
        Int(0),
        MIB + 12,
        dynamic=True,
        doc="Default of the topic setting `max.message.bytes`.",
    )
    min_insync_replicas: int = setting(
        Int(1),
        1,
        dynamic=True,
        doc="Default of the topic setting `min.insync.replicas`.",
    )
    node_id: int = setting(
        Int(0),
        1,
        doc="The number of this node, different from that of every other node of the cluster.",
    )
    num_partitions: int = setting(
        Int(1),
        1,
        doc="Partitions of a new topic that does not say how many.",
    )
    process_roles: tuple[str, ...] = setting(
        ListOf(choices=("broker", "controller")),
        ("broker", "controller"),
        doc="What this node does: `broker` keeps records and serves clients, `controller` keeps the"
        " cluster's metadata. One node can do both.",
    )
    producer_id_expiration_ms: int = setting(
        Int(1),
        86_400_000,
        dynamic=True,
        doc="How long a partition remembers an idempotent producer that sends nothing.",
    )
    queued_max_request_bytes: int = setting(
        Long(-1),
        512 * MIB,
        doc="Bytes of requests that are received but not answered, over all connections; past it"
        " the broker stops reading sockets. -1 is no limit. Kafka's default is no limit.",
    )
    socket_request_max_bytes: int = setting(
        Int(1),
        100 * MIB,
        doc="The largest request accepted; a connection that announces a larger one is closed.",
    )
    telemetry_max_bytes: int = setting(
        Int(1),
        MIB,
        doc="The most bytes, compressed, that a client may push of its own metrics at once"
        " (KIP-714).",
    )
    unclean_leader_election_enable: bool = setting(
        Bool(),
        False,
        dynamic=True,
        doc="Default of the topic setting `unclean.leader.election.enable`.",
    )

    # Not shown where a config is printed: they may hold passwords.
    static: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    dynamic_defaults: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    dynamic: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    base: "BrokerConfig | None" = field(default=None, compare=False, repr=False)

    @property
    def data_directories(self) -> tuple[str, ...]:
        """`log.dirs`, or `log.dir` if that is not given."""
        return self.log_dir if self.log_dirs is None else self.log_dirs

    def value_of(self, name: str) -> Any:
        """The value in effect under a setting's name: its own, or the inherited one."""
        setting = BROKER_SETTINGS[name]
        value = getattr(self, setting.attribute)
        while value is None and setting.inherits:
            setting = BROKER_SETTINGS[setting.inherits]
            value = getattr(self, setting.attribute)
        # -1 is "no limit" in every unit.
        return value * setting.scale if setting.scale > 1 and value > 0 else value

    def value_at(self, listener: str, name: str) -> Any:
        """The value of a `per_listener` setting at a listener: its own, or that for all."""
        setting = BROKER_SETTINGS[name]
        assert setting.per_listener, name
        own = f"{LISTENER_PREFIX}{listener.lower()}.{name}"
        for layer in (self.dynamic, self.static):
            for given, text in layer.items():
                # The listener's name in any case, as in `listeners`.
                if given.lower() == own:
                    return setting.parse(text)
        return self.value_of(name)

    def protocol_of(self, listener: str) -> SecurityProtocol:
        """The security protocol of a listener; ConfigError if no setting names it."""
        return protocol_of_listener(
            listener,
            protocol_map(self.listener_security_protocol_map),
            [listener.name for listener in self.listeners],
            self.controller_listener_names,
        )

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener at which brokers reach each other.

        A node that is only a controller need not have it among its own.
        """
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name
        names = [
            listener.name
            for listener in self.listeners
            if listener.name not in self.controller_listener_names
        ]
        wanted = SecurityProtocol[self.security_inter_broker_protocol]
        spoken = [name for name in names if self.protocol_of(name) is wanted]
        return next(iter(spoken or names), wanted.name)

    @property
    def inter_broker_protocol(self) -> SecurityProtocol:
        """The security protocol that brokers speak to each other."""
        return self.protocol_of(self.inter_broker_listener)

    @property
    def controller_listener(self) -> str:
        """The name of the listener at which nodes reach controllers."""
        return next(iter(self.controller_listener_names or (self.listeners[0].name,)))

    def with_overrides(
        self, overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None
    ) -> "BrokerConfig":
        """This config under new dynamic overrides, which replace the old overrides.

        `overrides` are this broker's own; `defaults` are the cluster's, and weaker.
        """
        base = self.base or self
        defaults = defaults or {}
        for name in (*defaults, *overrides):
            if not find_setting(name, Scope.BROKER, BROKER_SETTINGS).dynamic:
                raise ConfigError(f"{name} can only be set in the broker's properties file")
        values = parse_values(BROKER_SETTINGS, Scope.BROKER, {**defaults, **overrides})
        return replace(
            base, **values, dynamic_defaults=dict(defaults), dynamic=dict(overrides), base=base
        )

    def advertised(self, bound: Sequence[Listener], hostname: str) -> tuple[Listener, ...]:
        """The advertised listeners, given the bound listeners.

        `hostname` stands in for a listener that was given without a host, as in Kafka.
        """
        ports = {listener.name: listener.port for listener in bound}
        advertised = bound
        if self.advertised_listeners is not None:
            advertised = [
                listener._replace(port=listener.port or ports[listener.name])
                for listener in self.advertised_listeners
            ]
        return tuple(listener._replace(host=listener.host or hostname) for listener in advertised)

    @property
    def bootstrap_credentials(self) -> tuple[BootstrapCredential, ...]:
        """The first SCRAM users of a new cluster."""
        return parse_bootstrap_credentials(self.scram_bootstrap_credentials or "")

    @property
    def client_listeners(self) -> frozenset[str]:
        """The names of the listeners that clients and brokers use."""
        names = {listener.name for listener in self.listeners}
        return frozenset(names - set(self.controller_listener_names))

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The given settings that are accepted and have no effect."""
        return tuple(name for name in self.static if not _has_effect(name))

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles


BROKER_SETTINGS: dict[str, Option] = options_of(BrokerConfig, Scope.BROKER)


def _has_effect(name: str) -> bool:
    """Whether a setting is honoured under this name, which may be that for one listener."""
    if name.startswith(LISTENER_PREFIX):
        _, _, name = name.removeprefix(LISTENER_PREFIX).partition(".")
        for base in SASL_MECHANISM_SETTINGS:
            # A mechanism may come first, such as `plain.sasl.jaas.config`.
            name = base if name.endswith(f".{base}") else name
        return name in BROKER_SETTINGS and BROKER_SETTINGS[name].per_listener
    return name in BROKER_SETTINGS


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NO_BRACKETS = str.maketrans("", "", "[]")


def broker_config(properties: Mapping[str, str]) -> BrokerConfig:
    """A broker's config from its properties; ConfigError for an unknown key or a bad value."""
    values: dict[str, Any] = {}
    for name, text in properties.items():
        try:
            values |= parse_values(BROKER_SETTINGS, Scope.BROKER, {name: text})
        except ConfigError as error:
            if isinstance(properties, Properties):
                raise ConfigError(f"line {properties.lines[name]}: {error}") from None
            raise
    values |= _node_id(values)
    config = BrokerConfig(**values, static=dict(properties))
    _check_together(config)
    if _bootstraps_from_itself(config):
        return replace(config, controller_quorum_bootstrap_servers=())
    return config


def _bootstraps_from_itself(config: BrokerConfig) -> bool:
    """Whether the bootstrap servers of a controller are its own listeners and no others.

    The properties file that comes with Kafka is such; its node is formatted as the only voter.
    """
    servers = config.controller_quorum_bootstrap_servers
    if not config.is_controller or config.controller_quorum_voters or not servers:
        return False
    own = set[str]()
    for listener in (*config.listeners, *(config.advertised_listeners or ())):
        if (
            listener.name in config.controller_listener_names
            or not config.controller_listener_names
        ):
            hosts = {listener.host.lower()}
            if listener.host in (*ANY_ADDRESS, *_LOOPBACK):
                hosts |= set(_LOOPBACK)
            own |= {f"{host}:{listener.port}" for host in hosts}
    return all(server.lower().translate(_NO_BRACKETS) in own for server in servers)


def _node_id(values: Mapping[str, Any]) -> dict[str, int]:
    """`node.id` and `broker.id`, which are two names of one number."""
    broker_id = values.get("broker_id", -1)
    if broker_id < 0:
        return {"broker_id": values["node_id"]} if "node_id" in values else {}
    node_id: int = values.get("node_id", broker_id)
    if node_id != broker_id:
        raise ConfigError(
            f"node.id {node_id} and broker.id {broker_id} are two names of one number; give node.id"
        )
    return {"node_id": node_id}


def _check_together(config: BrokerConfig) -> None:
    """Refuse values that contradict each other."""
    _check_listeners(config)
    voters = {voter.node_id for voter in config.controller_quorum_voters}
    if "controller" in config.process_roles:
        if (
            voters
            and config.node_id not in voters
            and not config.controller_quorum_bootstrap_servers
        ):
            raise ConfigError(
                f"node.id {config.node_id} has the role controller but is not in"
                " controller.quorum.voters; add it, or set controller.quorum.bootstrap.servers and"
                " add it later with `headrace quorum add`"
            )
    elif config.node_id in voters:
        raise ConfigError(
            f"node.id {config.node_id} is in controller.quorum.voters but has not the role"
            " controller; add the role to process.roles, or take the voter away"
        )
    elif not voters and not config.controller_quorum_bootstrap_servers:
        raise ConfigError(
            "a node that is no controller must know where they are; set controller.quorum.voters"
            " or controller.quorum.bootstrap.servers"
        )
    if config.broker_heartbeat_interval_ms * 2 > config.broker_session_timeout_ms:
        raise ConfigError(
            "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms"
        )


def _check_listeners(config: BrokerConfig) -> None:
    names = {listener.name for listener in config.listeners}
    for listener in config.listeners:
        protocol = config.protocol_of(listener.name)
        if protocol.uses_sasl:
            listener_sasl(config, listener.name)
    _check_inter_broker_listener(config)
    _check_listener_prefixes(config)
    check_node_logins(config)
    # Each role serves its own listeners; the settings of a node may name those of the other role.
    for setting_name, wanted, serves in (
        ("controller.listener.names", config.controller_listener_names, config.is_controller),
        ("inter.broker.listener.name", (config.inter_broker_listener_name,), config.is_broker),
    ):
        for name in wanted:
            if name is not None and serves and name not in names:
                raise ConfigError(f"{setting_name} has {name}, which listeners does not have")
    if config.advertised_listeners is None:
        for listener in config.listeners:
            if listener.host in ANY_ADDRESS and listener.host:
                raise ConfigError(
                    f"listeners has {listener}, which clients cannot connect to;"
                    " set advertised.listeners to a host name or address they can reach"
                )
    elif not {listener.name for listener in config.advertised_listeners} <= names:
        raise ConfigError("advertised.listeners names a listener that listeners does not have")


def _check_listener_prefixes(config: BrokerConfig) -> None:
    """Refuse settings of a listener that nothing else names: they would protect nobody.

    Unlike Kafka: it takes no notice of them.
    """
    known = {
        *(listener.name for listener in config.listeners),
        *config.controller_listener_names,
        config.inter_broker_listener,
        *protocol_map(config.listener_security_protocol_map),
    }
    folded = {name.lower() for name in known}
    for name in config.static:
        if name.lower().startswith(LISTENER_PREFIX):
            listener = name[len(LISTENER_PREFIX) :].partition(".")[0]
            if listener.lower() not in folded:
                raise ConfigError(
                    f"{name} is about the listener {listener.upper()}, of which listeners and"
                    f" listener.security.protocol.map say nothing{suggestion(listener, known)}"
                )


def _check_inter_broker_listener(config: BrokerConfig) -> None:
    if "security.inter.broker.protocol" in config.static:
        if config.inter_broker_listener_name is not None:
            raise ConfigError(
                "security.inter.broker.protocol and inter.broker.listener.name are both given;"
                " take one of them away"
            )
        protocol = config.security_inter_broker_protocol
        if config.is_broker and config.inter_broker_protocol.name != protocol:
            raise ConfigError(
                f"security.inter.broker.protocol is {protocol}, and no listener of this broker"
                " speaks that; add one to listeners, or set inter.broker.listener.name"
            )
    else:
        config.protocol_of(config.inter_broker_listener)
