"""Write the message tables in src/headrace/protocol/messages from a JSON list of message facts.

    python tools/make_messages.py FACTS.json [--out DIR]

FACTS.json lists every message with its fields, types and version ranges (see `SERVED` for the ones
taken). Run it again, with more names in `SERVED`, when the system starts to serve another API.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

SERVED = [
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeaderEpoch",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "TxnOffsetCommit",
    "DescribeConfigs",
    "AlterConfigs",
    "AlterReplicaLogDirs",
    "DescribeLogDirs",
    "CreatePartitions",
    "DeleteGroups",
    "IncrementalAlterConfigs",
    "OffsetDelete",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "DescribeCluster",
    "DescribeProducers",
    "DescribeTransactions",
    "ListTransactions",
    "DescribeTopicPartitions",
    "ElectLeaders",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "Vote",
    "BeginQuorumEpoch",
    "EndQuorumEpoch",
    "DescribeQuorum",
    "AlterPartition",
    "Envelope",
    "FetchSnapshot",
    "BrokerRegistration",
    "BrokerHeartbeat",
    "UnregisterBroker",
    "UpdateFeatures",
    "AllocateProducerIds",
    "AssignReplicasToDirs",
    "AddRaftVoter",
    "RemoveRaftVoter",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "DescribeClientQuotas",
    "AlterClientQuotas",
    "DescribeUserScramCredentials",
    "AlterUserScramCredentials",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "SaslHandshake",
    "SaslAuthenticate",
    "ListConfigResources",
]

# Tables to which fields of our own were added by hand (see `schema.OWN_TAG_MIN`).
KEPT = {"describe_log_dirs", "principal_data"}

# Messages other than requests and responses: module name, its docstring, the messages in it.
DATA = {
    "metadata_records": (
        "The records of the metadata log, as Kafka defines them.",
        {
            "RegisterBrokerRecord",
            "UnregisterBrokerRecord",
            "TopicRecord",
            "PartitionRecord",
            "ConfigRecord",
            "PartitionChangeRecord",
            "FenceBrokerRecord",
            "UnfenceBrokerRecord",
            "RemoveTopicRecord",
            "FeatureLevelRecord",
            "ProducerIdsRecord",
            "BrokerRegistrationChangeRecord",
            "DelegationTokenRecord",
            "UserScramCredentialRecord",
            "RemoveUserScramCredentialRecord",
            "RemoveDelegationTokenRecord",
            "ClientQuotaRecord",
            "NoOpRecord",
            "AccessControlEntryRecord",
            "RemoveAccessControlEntryRecord",
        },
    ),
    "quorum_records": (
        "Control records of the metadata log, and the head and foot of its snapshots.",
        {
            "LeaderChangeMessage",
            "SnapshotHeaderRecord",
            "SnapshotFooterRecord",
            "KRaftVersionRecord",
            "VotersRecord",
        },
    ),
    "offsets_records": (
        "The records of `__consumer_offsets`: group metadata and committed offsets.",
        {"OffsetCommitKey", "OffsetCommitValue", "GroupMetadataKey", "GroupMetadataValue"},
    ),
    "consumer_group_records": (
        "The records of `__consumer_offsets` about groups whose coordinator assigns (KIP-848).",
        {
            "ConsumerGroupMetadataKey",
            "ConsumerGroupMetadataValue",
            "ConsumerGroupPartitionMetadataKey",
            "ConsumerGroupPartitionMetadataValue",
            "ConsumerGroupMemberMetadataKey",
            "ConsumerGroupMemberMetadataValue",
            "ConsumerGroupTargetAssignmentMetadataKey",
            "ConsumerGroupTargetAssignmentMetadataValue",
            "ConsumerGroupTargetAssignmentMemberKey",
            "ConsumerGroupTargetAssignmentMemberValue",
            "ConsumerGroupCurrentMemberAssignmentKey",
            "ConsumerGroupCurrentMemberAssignmentValue",
            "ConsumerGroupRegularExpressionKey",
            "ConsumerGroupRegularExpressionValue",
        },
    ),
    "transaction_records": (
        "The records of `__transaction_state`, and the value of a transaction's marker.",
        {"TransactionLogKey", "TransactionLogValue", "EndTxnMarker"},
    ),
    "principal_data": (
        "The sender of a request, as an envelope carries it to the controller.",
        {"DefaultPrincipalData"},
    ),
    "consumer_protocol": (
        "What consumers put into the opaque bytes of JoinGroup and SyncGroup.",
        {"ConsumerProtocolSubscription", "ConsumerProtocolAssignment"},
    ),
}

PYTHON_TYPES = {
    "bool": "bool",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
    "uuid": "bytes",
    "float64": "float",
}
FIELD_FUNCTIONS = {"bool": "boolean", "bytes": "raw"}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def versions_text(bounds: list[Any], last: int) -> str:
    first, end = bounds
    if end is None or end >= last:
        return f"{first}+"
    return f"{first}-{end}" if first != end else str(first)


def share_structs(fields: list[dict[str, Any]]) -> set[str]:
    """Merge the definitions of structs that a message has in several places, with all their
    versions.
    """
    places: dict[str, list[list[dict[str, Any]]]] = {}

    def visit(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            if field["type"] == "struct":
                places.setdefault(field["struct"], []).append(field["fields"])
                visit(field["fields"])

    visit(fields)
    shared = {name: found for name, found in places.items() if len(found) > 1}
    for found in shared.values():
        for same in zip(*found, strict=True):
            first = min(field["versions"][0] for field in same)
            ends = [field["versions"][1] for field in same]
            for field in same:
                field["versions"] = [first, None if None in ends else max(ends)]
    return set(shared)


class Module:
    """One file of tables; struct names are unique within it."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.classes: list[str] = []
        self.struct_names: set[str] = set()
        # The names of structs that a message has in several places.
        self.shared: set[str] = set()
        self.imports: set[str] = set()

    def add(self, fact: dict[str, Any], name: str) -> None:
        self.struct_names.add(name)
        facts = [f"api_key={fact['api_key']}"] if fact["api_key"] is not None else []
        facts.append(f"versions=({fact['versions'][0]}, {fact['versions'][1]})")
        if fact["flexible_from"] is not None:
            facts.append(f"flexible_from={fact['flexible_from']}")
        self.imports.add("Message")
        self.shared = share_structs(fact["fields"])
        body = self.fields(fact["fields"], fact["versions"], kind=name)
        self.classes.append(f"class {name}(Message, {', '.join(facts)}):\n{body}")

    def struct(self, field: dict[str, Any], versions: list[int], kind: str) -> str:
        name: str = field["struct"]
        if name in self.struct_names and name in self.shared:
            return name
        if name in self.struct_names:
            name = f"{kind}{name}"
        assert name not in self.struct_names, name
        self.struct_names.add(name)
        self.imports.add("Struct")
        body = self.fields(field["fields"], versions, kind)
        self.classes.append(f"class {name}(Struct):\n{body}")
        return name

    def fields(self, fields: list[dict[str, Any]], versions: list[int], kind: str) -> str:
        return "".join(self.field(field, versions, kind) for field in fields) or "    pass\n"

    def field(self, field: dict[str, Any], versions: list[int], kind: str) -> str:
        arguments: list[str] = []
        if field["type"] == "struct":
            python = self.struct(field, versions, kind)
            function = "struct"
            if not field["array"]:
                arguments.append(python)
        else:
            python = PYTHON_TYPES.get(field["type"], "int")
            function = FIELD_FUNCTIONS.get(field["type"], field["type"])
        element = python
        if field["array"]:
            self.imports.add("array")
            if field["type"] == "struct":
                arguments.append(element)
            else:
                arguments.append(function)
                self.imports.add(function)
            function, python = "array", f"list[{python}]"
        self.imports.add(function)
        text = versions_text(field["versions"], versions[1])
        if text != f"{versions[0]}+":
            arguments.append(f'"{text}"')
        if field["nullable"] is not None:
            arguments.append(f'nullable="{versions_text(field["nullable"], versions[1])}"')
            python += " | None"
        if field["tag"] is not None:
            arguments.append(f"tag={field['tag']}")
        arguments.append(f"default={self.default(field)}")
        return f"    {field['name']}: {python} = {function}({', '.join(arguments)})\n"

    def default(self, field: dict[str, Any]) -> str:
        value = field["default"]
        if value is None:
            return "None"
        if field["array"] or field["type"] == "struct":
            return "..."
        if field["type"] == "uuid":
            self.imports.add("ZERO_UUID")
            return "ZERO_UUID"
        if field["type"] in ("bytes", "records"):
            return 'b""'
        if field["type"] == "string":
            return json.dumps(value)
        return repr(value)

    def text(self) -> str:
        body = "\n\n".join(self.classes)
        from_types = sorted(
            name for name in ("Buffer", "ZERO_UUID") if re.search(rf"\b{name}\b", body)
        )
        names = sorted(self.imports - {"ZERO_UUID"}, key=str.lower)
        lines = [f'"""{self.title}"""\n', "from headrace.protocol.schema import ("]
        lines += [f"    {name}," for name in names]
        lines.append(")")
        if from_types:
            lines.append(f"from headrace.types import {', '.join(from_types)}")
        return "\n".join(lines) + "\n\n\n" + body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("facts", type=Path)
    parser.add_argument("--out", type=Path, default=Path("src/headrace/protocol/messages"))
    options = parser.parse_args()
    facts = json.loads(options.facts.read_text())
    modules: dict[str, Module] = {}
    for name in SERVED:
        module = modules.setdefault(snake(name), Module(f"Tables of the {name} API."))
        for fact in facts:
            if fact["name"] == name and fact["kind"] in ("request", "response"):
                module.add(fact, name + fact["kind"].title())
    for fact in facts:
        for module_name, (title, names) in DATA.items():
            if fact["kind"] == "data" and fact["name"] in names:
                modules.setdefault(module_name, Module(title)).add(fact, fact["name"])
    for name, module in modules.items():
        if name in KEPT:
            print(f"{name}.py has fields of our own and is left as it is")
            continue
        (options.out / f"{name}.py").write_text(module.text())


if __name__ == "__main__":
    main()
