import pytest

from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.test_quotas import QuotaBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> QuotaBrokers:
    brokers = QuotaBrokers()
    use(brokers, monkeypatch, "quotas")
    return brokers


def test_quotas_are_set_shown_and_removed(brokers: QuotaBrokers) -> None:
    assert invoke("quotas", "describe").stdout == "There are no quotas.\n"
    wanted = ("producer_byte_rate=10485760", "request_percentage=12.5")
    result = invoke("quotas", "set", *wanted, "--user", "alice", "--client-id-default")
    assert result.stdout == "set the quotas of user alice, client-id (default)\n"
    invoke("quotas", "set", "connection_creation_rate=20", "--ip", "10.0.0.1")
    assert invoke("quotas", "describe").stdout.splitlines() == [
        "USER   CLIENT-ID  IP        QUOTA                     VALUE",
        "alice  (default)  -         producer_byte_rate        10485760",
        "alice  (default)  -         request_percentage        12.5",
        "-      -          10.0.0.1  connection_creation_rate  20",
    ]
    assert document(invoke("quotas", "describe", "--ip", "10.0.0.1", "--json")) == {
        "quotas": [{"owner": {"ip": "10.0.0.1"}, "quotas": {"connection_creation_rate": 20.0}}]
    }
    result = invoke("quotas", "remove", "connection_creation_rate", "--ip", "10.0.0.1")
    assert result.stdout == "removed quotas of ip 10.0.0.1\n"
    assert list(brokers.quotas) == [(("client-id", None), ("user", "alice"))]


def test_json_tells_what_was_changed(brokers: QuotaBrokers) -> None:
    owner = ("--user-default", "--json")
    assert document(invoke("quotas", "set", "consumer_byte_rate=5", *owner)) == {
        "owner": {"user": None},
        "set": {"consumer_byte_rate": 5.0},
    }
    assert document(invoke("quotas", "remove", "consumer_byte_rate", *owner)) == {
        "owner": {"user": None},
        "removed": ["consumer_byte_rate"],
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("set", "producer_byte_rate=5"), "Give --user, --client-id or --ip"),
        (("set", "producer_byte_rate=5", "--user", "a", "--user-default"), "not both"),
        (("set", "producer_byte_rate=5", "--user", "a", "--ip-default"), "cannot be combined"),
        (("set", "producer_byte_rate=x", "--user", "a"), "give a number (bytes a second)"),
        (("set", "producer_byte_rate", "--user", "a"), "KEY=VALUE"),
        (("remove", "--user", "a"), "Missing argument"),
    ],
)
def test_wrong_usage_is_told(brokers: QuotaBrokers, arguments: tuple[str, ...], text: str) -> None:
    result = invoke("quotas", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_refusal_of_the_cluster_is_told(brokers: QuotaBrokers) -> None:
    result = invoke("quotas", "set", "bogus=5", "--user", "a")
    assert result.exit_code == 1
    assert "'bogus' is no quota" in result.stderr
