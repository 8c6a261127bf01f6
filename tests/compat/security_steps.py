"""The steps with users, rights, quotas and tokens in which Kafka's commands are run, in order.

{plain} is the super user's listener. At {secure} the files {admin}, {alice}, {guess}, {bob} and
{token} are of clients that log in by SCRAM, or with a delegation token.
"""

from tests.compat.kafka_commands import Step

P = "--bootstrap-server {plain}"
ADMIN, ALICE, BOB, GUESS, TOKEN = (
    f"--bootstrap-server {{secure}} --command-config {{{name}}}"
    for name in ("admin", "alice", "bob", "guess", "token")
)
PASSWORDS = {"admin": "admin-secret-1", "alice": "wonder-land-1", "bob": "builder-1"}
ORDERS, SECRETS = "orders", "secrets"
# The exception of a client that fails; texts are each broker's own.
_KINDS = r"\b(\w+AuthorizationException|\w*AuthenticationException|Error while \w+ \w+ command)\b"


def _users(action: str, rest: str = "") -> str:
    return f"{P} --{action} --entity-type users{rest}"


USERS = (
    *(
        Step(
            f"add {name} by {mechanism}",
            "configs",
            _users("alter", f" --entity-name {name} --add-config ")
            + f"{mechanism}=[{iterations}password={password}]",
        )
        for name, password in PASSWORDS.items()
        for mechanism, iterations in (("SCRAM-SHA-256", "iterations=8192,"), ("SCRAM-SHA-512", ""))
        if name == "bob" or mechanism == "SCRAM-SHA-256"
    ),
    Step(
        "add two credentials at once",
        "configs",
        _users("alter", " --entity-name eve --add-config ")
        + "SCRAM-SHA-256=[password=p],SCRAM-SHA-512=[password=p]",
        kept="Completed|Exception",
    ),
    Step("describe a user", "configs", _users("describe", " --entity-name alice")),
    # Kafka has the mechanisms of a user in no order.
    Step("describe all users", "configs", _users("describe"), kept=r"'(\w+)' are SCRAM"),
    Step("describe a user that is not", "configs", _users("describe", " --entity-name nobody")),
    Step(
        "delete a credential",
        "configs",
        _users("alter", " --entity-name bob --delete-config SCRAM-SHA-512"),
    ),
    Step(
        "delete a credential that is not",
        "configs",
        _users("alter", " --entity-name bob --delete-config SCRAM-SHA-512"),
        kept="Completed|Exception",
    ),
    Step("describe the other credential", "configs", _users("describe", " --entity-name bob")),
    Step(
        "add a user as somebody",
        "configs",
        f"{ALICE} --alter --entity-type users --entity-name eve"
        " --add-config SCRAM-SHA-256=[password=secret]",
        kept=_KINDS,
        once=True,
    ),
    Step("list users by SASL_SSL", "configs", f"{ADMIN} --describe --entity-type users"),
    Step("log in with a wrong password", "topics", f"{GUESS} --list", kept=_KINDS, once=True),
)

RIGHTS = (
    Step("list no ACLs", "acls", f"{ADMIN} --list"),
    Step("create a topic as the admin", "topics", f"{ADMIN} --create --topic {ORDERS}"),
    Step("create another topic", "topics", f"{ADMIN} --create --topic {SECRETS}"),
    Step(
        "create a topic without a right",
        "topics",
        f"{ALICE} --create --topic mine",
        kept=_KINDS,
        once=True,
    ),
    Step("list topics without rights", "topics", f"{ALICE} --list"),
    Step(
        "describe a topic without a right",
        "topics",
        f"{ALICE} --describe --topic {ORDERS}",
        kept=_KINDS,
    ),
    Step(
        "delete a topic without a right",
        "topics",
        f"{ALICE} --delete --topic {ORDERS}",
        kept=_KINDS,
    ),
    Step(
        "write without a right",
        "producer",
        f"{ALICE} --topic {ORDERS}",
        stdin="denied\n",
    ),
    Step(
        "read without a right",
        "consumer",
        f"{ALICE} --topic {ORDERS} --from-beginning --max-messages 1 --timeout-ms 20000",
        kept="Processed|^[a-e]$",
    ),
    Step(
        "add rights of a producer",
        "acls",
        f"{ADMIN} --add --allow-principal User:alice --producer --topic {ORDERS}",
    ),
    Step(
        "add rights of a consumer",
        "acls",
        f"{ADMIN} --add --allow-principal User:alice --consumer --topic {ORDERS} --group readers",
    ),
    Step("write", "producer", f"{ALICE} --topic {ORDERS}", stdin="a\nb\nc\n"),
    Step(
        "read",
        "consumer",
        f"{ALICE} --topic {ORDERS} --from-beginning --max-messages 3 --group readers",
    ),
    Step(
        "read in a group without a right",
        "consumer",
        f"{ALICE} --topic {ORDERS} --from-beginning --max-messages 1 --timeout-ms 20000"
        " --group others",
        kept="Processed|^[a-e]$",
    ),
    Step("list topics with rights", "topics", f"{ALICE} --list"),
    Step("describe a topic with a right", "topics", f"{ALICE} --describe --topic {ORDERS}"),
    Step("list groups with rights", "groups", f"{ALICE} --list"),
    Step(
        "describe a group with a right",
        "consumer-groups",
        f"{ALICE} --describe --group readers",
    ),
    Step(
        "delete a group without a right",
        "consumer-groups",
        f"{ALICE} --delete --group readers",
        kept=r"\b(\w+AuthorizationException|Deletion|success\w*)",
        once=True,
    ),
    Step(
        "delete records without a right",
        "delete-records",
        f"{ALICE} --offset-json-file {{deletions}}",
        kept=r"(\w+AuthorizationException|not authorized|Not authorized|low_watermark)",
        once=True,
    ),
    Step(
        "alter a topic without a right",
        "configs",
        f"{ALICE} --alter --entity-type topics --entity-name {ORDERS} --add-config retention.ms=9",
        kept=_KINDS,
        once=True,
    ),
    Step(
        "describe settings without a right",
        "configs",
        f"{BOB} --describe --entity-type topics --entity-name {ORDERS}",
        kept=_KINDS,
        once=True,
    ),
    Step(
        "describe the cluster without a right",
        "features",
        f"{ALICE} describe",
        kept="Feature: kraft|Exception",
    ),
    Step(
        "describe the quorum without a right",
        "quorum",
        f"{ALICE} describe --status",
        kept=_KINDS,
        once=True,
    ),
    Step("list ACLs without a right", "acls", f"{ALICE} --list", kept=_KINDS, once=True),
    Step(
        "deny an address",
        "acls",
        f"{ADMIN} --add --deny-principal User:alice --deny-host 127.0.0.1 --operation Write"
        f" --topic {ORDERS}",
    ),
    Step(
        "write what is denied",
        "producer",
        f"{ALICE} --topic {ORDERS}",
        stdin="denied\n",
    ),
    Step(
        "add rights by prefix",
        "acls",
        f"{ADMIN} --add --allow-principal User:bob --allow-principal User:eve --operation All"
        " --topic or --resource-pattern-type prefixed",
    ),
    Step("list topics by a prefix", "topics", f"{BOB} --list"),
    Step(
        "add rights on a cluster",
        "acls",
        f"{ADMIN} --add --allow-principal User:bob --operation Describe --cluster",
    ),
    Step(
        "add rights on a transactional id",
        "acls",
        f"{ADMIN} --add --allow-principal User:bob --operation Write --transactional-id tx",
    ),
    Step(
        "add rights on tokens",
        "acls",
        f"{ADMIN} --add --allow-principal User:bob --operation Describe --delegation-token *",
    ),
    Step(
        "add rights on tokens of a user",
        "acls",
        f"{ADMIN} --add --allow-principal User:bob --operation CreateTokens"
        " --operation DescribeTokens --user-principal User:alice",
    ),
    Step("list ACLs", "acls", f"{ADMIN} --list"),
    Step("list ACLs of a topic", "acls", f"{ADMIN} --list --topic {ORDERS}"),
    Step(
        "list ACLs that match a topic",
        "acls",
        f"{ADMIN} --list --topic {ORDERS} --resource-pattern-type match",
    ),
    Step("list ACLs of a user", "acls", f"{ADMIN} --list --principal User:bob"),
    Step(
        "remove an ACL",
        "acls",
        f"{ADMIN} --remove --force --deny-principal User:alice --deny-host 127.0.0.1"
        f" --operation Write --topic {ORDERS}",
    ),
    Step("write again", "producer", f"{ALICE} --topic {ORDERS}", stdin="d\n"),
    Step(
        "remove ACLs of a prefix",
        "acls",
        f"{ADMIN} --remove --force --topic or --resource-pattern-type prefixed",
    ),
    Step("list ACLs that are left", "acls", f"{ADMIN} --list"),
)


def _quota(entity: str, change: str) -> str:
    return f"{ADMIN} --alter {entity} {change}"


_ALICE = "--entity-type users --entity-name alice"
_CLIENT = "--entity-type clients --entity-name reports"
_IP = "--entity-type ips --entity-name 127.0.0.9"
_RATES = "producer_byte_rate=1000000,consumer_byte_rate=2000000"
QUOTAS = (
    Step("a quota of a user", "configs", _quota(_ALICE, f"--add-config {_RATES}")),
    Step(
        "a quota of a user and a client",
        "configs",
        _quota(f"{_ALICE} {_CLIENT}", "--add-config request_percentage=50"),
    ),
    Step("a quota of a client", "configs", _quota(_CLIENT, f"--add-config {_RATES}")),
    Step(
        "a quota of every user",
        "configs",
        _quota(
            "--entity-type users --entity-default", "--add-config controller_mutation_rate=10.5"
        ),
    ),
    Step(
        "a quota of an address",
        "configs",
        _quota(_IP, "--add-config connection_creation_rate=100"),
    ),
    Step(
        "a quota of every address",
        "configs",
        _quota("--entity-type ips --entity-default", "--add-config connection_creation_rate=1000"),
    ),
    Step(
        "a quota of nothing",
        "configs",
        _quota(_CLIENT, "--add-config producer_byte_rate=0"),
        kept="Completed|Exception",
    ),
    Step("describe quotas of users", "configs", f"{ADMIN} --describe --entity-type users"),
    Step("describe quotas of clients", "configs", f"{ADMIN} --describe --entity-type clients"),
    Step(
        "describe quotas of users and clients",
        "configs",
        f"{ADMIN} --describe --entity-type users --entity-type clients",
    ),
    Step("describe quotas of addresses", "configs", f"{ADMIN} --describe --entity-type ips"),
    Step("describe quotas of a user", "configs", f"{ADMIN} --describe {_ALICE}"),
    Step("delete a quota", "configs", _quota(_ALICE, "--delete-config producer_byte_rate")),
    Step("describe the quota that is left", "configs", f"{ADMIN} --describe {_ALICE}"),
    Step(
        "set a quota without a right",
        "configs",
        f"{ALICE} --alter {_CLIENT} --add-config producer_byte_rate=1",
        kept=_KINDS,
        once=True,
    ),
)

_TOKEN_LINE = r"^\S+\s+\S+\s+User:\w+\s+User:\w+"
TOKENS = (
    Step("no tokens", "delegation-tokens", f"{ALICE} --describe"),
    Step(
        "create a token",
        "delegation-tokens",
        f"{ALICE} --create --max-life-time-period -1 --renewer-principal User:bob",
        kept=r"(Created|TOKENID|Exception)",
    ),
    Step(
        "create a token for another user",
        "delegation-tokens",
        f"{ALICE} --create --max-life-time-period -1 --owner-principal User:bob",
        kept=r"\b(\w+Exception)",
        once=True,
    ),
    Step(
        "create a token for another user with the right",
        "delegation-tokens",
        f"{BOB} --create --max-life-time-period 3600000 --owner-principal User:alice",
        kept=r"(Created|TOKENID|Exception)",
    ),
    Step(
        "create a token in plain text",
        "delegation-tokens",
        f"{P} --command-config {{empty}} --create --max-life-time-period -1",
        kept=r"\b(\w+Exception)",
        once=True,
    ),
    Step(
        "describe tokens",
        "delegation-tokens",
        f"{ALICE} --describe",
        kept=r"(User:\w+ User:\w+ \S* ?)[\d-]",
    ),
    Step(
        "describe tokens of an owner",
        "delegation-tokens",
        f"{ALICE} --describe --owner-principal User:alice",
        kept=r"(User:\w+ User:\w+ \S* ?)[\d-]",
    ),
    Step(
        "describe tokens of a renewer",
        "delegation-tokens",
        f"{BOB} --describe --owner-principal User:bob",
        kept=r"(User:\w+ User:\w+ \S* ?)[\d-]",
    ),
    Step(
        "describe tokens of others",
        "delegation-tokens",
        f"{BOB} --describe",
        kept=r"(User:\w+ User:\w+ \S* ?)[\d-]",
    ),
    Step("write with a token", "producer", f"{TOKEN} --topic {ORDERS}", stdin="e\n"),
    Step(
        "read with a token",
        "consumer",
        f"{TOKEN} --topic {ORDERS} --max-messages 2 --group readers",
        kept=r"^(Processed.*|[a-e]|\w+Exception)$",
    ),
    Step(
        "create a token with a token",
        "delegation-tokens",
        f"{TOKEN} --create --max-life-time-period -1",
        kept=r"\b(\w+Exception)",
        once=True,
    ),
    Step(
        "renew a token",
        "delegation-tokens",
        f"{BOB} --renew --hmac {{hmac}} --renew-time-period 3600000",
        kept=r"(Completed renew operation|\w+Exception)",
        once=True,
    ),
    Step(
        "renew a token of others",
        "delegation-tokens",
        f"{ADMIN} --renew --hmac {{hmac}} --renew-time-period 3600000",
        kept=r"(Completed renew operation|\w+Exception)",
        once=True,
    ),
    Step(
        "renew a token that is not",
        "delegation-tokens",
        f"{BOB} --renew --hmac AAAA --renew-time-period 3600000",
        kept=r"(Completed renew operation|\w+Exception)",
        once=True,
    ),
    Step(
        "end a token",
        "delegation-tokens",
        f"{ALICE} --expire --hmac {{hmac}} --expiry-time-period -1",
        kept=r"(Completed expire operation|\w+Exception)",
        once=True,
    ),
    Step("log in with an ended token", "topics", f"{TOKEN} --list", kept=_KINDS, once=True),
    Step(
        "describe the tokens that are left",
        "delegation-tokens",
        f"{ALICE} --describe",
        kept=r"(User:\w+ User:\w+ \S* ?)[\d-]",
    ),
)
SECURITY_STEPS = (*USERS, *RIGHTS, *QUOTAS, *TOKENS)
