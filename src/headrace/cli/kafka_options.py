"""Options of Kafka's own commands, and their replacements here.

Users know them from kafka-console-consumer and its kin. Options with the same meaning here are
options of the command itself; for the others an error has advice.
"""

from collections.abc import Mapping

_TOPIC = "name the topic without an option: headrace {command} TOPIC"
_BOOTSTRAP = "use --bootstrap-server HOST:PORT"
_CLIENT_FILE = "use --client-config FILE"
_QUORUM = "use `headrace quorum describe`"
_RESOURCE = "name the resource by its kind: --topic NAME, --broker ID, --group NAME"
_EVERYWHERE = {
    "--broker-list": _BOOTSTRAP,
    "--bootstrap-servers": _BOOTSTRAP,
    "--zookeeper": f"there is no ZooKeeper; {_BOOTSTRAP}",
}

_BY_COMMAND: Mapping[str, Mapping[str, str]] = {
    "consume": {
        "--topic": _TOPIC,
        "--include": "name the topics: headrace consume TOPIC TOPIC",
        "--whitelist": "name the topics: headrace consume TOPIC TOPIC",
        "--group": "consume is a member of no group, and commits nothing; `headrace groups"
        " describe GROUP` shows where a group is, and --from says where to begin",
        "--offset": "use --from with an offset, beginning or end",
        "--property": "print keys, offsets and times with --format '%p %o %t %k: %v\\n'",
        "--formatter": "choose a form with --format, or --json",
        "--formatter-property": "print keys, offsets and times with --format",
        "--consumer-property": _CLIENT_FILE,
        "--consumer.config": _CLIENT_FILE,
        "--timeout-ms": "without --follow reading ends where the log ended at the start; --timeout"
        " has seconds",
        "--skip-message-on-error": "records are printed as they are, and none is decoded",
    },
    "produce": {
        "--topic": _TOPIC,
        "--property": "use --key-separator TEXT for parse.key and key.separator, --header for"
        " headers, --format json for records with everything",
        "--reader-property": "use --key-separator TEXT, or --format json",
        "--request-required-acks": "use --acks",
        "--compression-codec": "use --compression",
        "--producer-property": _CLIENT_FILE,
        "--producer.config": _CLIENT_FILE,
        "--line-reader": "choose what a line is with --format lines or json",
        "--sync": "the command ends when every record is acknowledged; for one at a time use"
        " --linger-ms 0 --batch-size 1",
    },
    "topics": {
        "--create": "use `headrace topics create TOPIC`",
        "--list": "use `headrace topics list`",
        "--describe": "use `headrace topics describe TOPIC`",
        "--alter": "use `headrace topics alter TOPIC`",
        "--delete": "use `headrace topics delete TOPIC`",
        "--topic": "name the topic without an option: headrace topics describe TOPIC",
    },
    "groups": {
        "--list": "use `headrace groups list`",
        "--describe": "use `headrace groups describe GROUP`",
        "--delete": "use `headrace groups delete GROUP`",
        "--reset-offsets": "use `headrace groups reset-offsets GROUP`",
        "--delete-offsets": "use `headrace groups delete-offsets GROUP`",
        "--group": "name the group without an option: headrace groups describe GROUP",
    },
    "quorum": {"--status": _QUORUM, "--replication": _QUORUM},
    "reassign": {
        "--generate": "use `headrace reassign generate`",
        "--execute": "use `headrace reassign execute PLAN`",
        "--verify": "use `headrace reassign verify PLAN`",
        "--cancel": "use `headrace reassign cancel PLAN`",
        "--reassignment-json-file": "name the plan without an option: headrace reassign execute"
        " PLAN",
    },
}
# For subcommands of a group too: `topics create --topic`.
_TOPIC_OF = "name the topic without an option: headrace topics {command} TOPIC"
_GROUP_OF = "name the group without an option: headrace groups {command} GROUP"
_BY_PARENT = {
    "configs": {
        "--entity-type": _RESOURCE,
        "--entity-name": _RESOURCE,
        "--entity-default": "settings of every broker at once are not changed by this command",
        "--add-config": "use --set KEY=VALUE",
        "--delete-config": "use --delete KEY",
    },
    "quorum": {"--status": _QUORUM, "--replication": _QUORUM},
    "transactions": {
        "--transactional-id": "name the id without an option: headrace transactions {command} ID"
    },
    "topics": {"--topic": _TOPIC_OF, "--if-not-exists": "create says if the topic exists already"},
    "groups": {"--group": _GROUP_OF},
    "reassign": {
        "--reassignment-json-file": "name the plan without an option: headrace reassign"
        " {command} PLAN"
    },
}


# Kafka's commands, without their prefix `kafka-`.
_COMMANDS = {
    "console-consumer": "consume",
    "console-producer": "produce",
    "consumer-groups": "groups",
    "dump-log": "log dump",
    "leader-election": "brokers elect",
    "log-dirs": "brokers describe",
    "metadata-quorum": "quorum",
    "reassign-partitions": "reassign",
    "server-start": "broker --config FILE",
}


def command_for(name: str) -> str | None:
    """The command in place of one of Kafka's, which may have its ending; None if it is not one.

    >>> command_for("kafka-consumer-groups.sh")
    'headrace groups'
    """
    found = _COMMANDS.get(name.removeprefix("kafka-").removesuffix(".sh"))
    return None if found is None else f"headrace {found}"


def advice(command_path: str, option: str) -> str | None:
    """The advice for an option of Kafka's command; None if it is not one.

    >>> advice("headrace consume", "--topic")
    'name the topic without an option: headrace consume TOPIC'
    >>> advice("headrace topics create", "--topic")
    'name the topic without an option: headrace topics create TOPIC'
    """
    *_, parent, command = ("", *command_path.split())
    for table in (_BY_COMMAND.get(command, {}), _BY_PARENT.get(parent, {}), _EVERYWHERE):
        if option in table:
            return table[option].format(command=command) if "{" in table[option] else table[option]
    return None
