import pytest

from headrace.config.accepted import NO_EFFECT
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.fakes import AdminBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> AdminBrokers:
    brokers = AdminBrokers()
    entries = [
        DescribeConfigsResourceResult(name="a.b", value="1", config_source=5),
        DescribeConfigsResourceResult(name="c.d", value="2", config_source=1),
        DescribeConfigsResourceResult(
            name="secret", value=None, config_source=4, is_sensitive=True, read_only=True
        ),
    ]
    described = DescribeConfigsResponse(results=[DescribeConfigsResult(configs=entries)])
    altered = IncrementalAlterConfigsResponse(responses=[AlterConfigsResourceResponse()])
    brokers._DescribeConfigs = lambda node, request: described  # type: ignore[attr-defined]
    brokers._IncrementalAlterConfigs = lambda node, request: altered  # type: ignore[attr-defined]
    use(brokers, monkeypatch, "configs")
    return brokers


def test_describe_shows_what_is_not_the_default(brokers: AdminBrokers) -> None:
    result = invoke("configs", "describe", "--topic", "t")
    assert result.stdout.splitlines() == [
        "SETTING  VALUE     SOURCE                CHANGEABLE",
        "c.d      2         topic_config          yes",
        "secret   (hidden)  static_broker_config  no",
    ]
    assert "a.b" in invoke("configs", "describe", "--broker", "1", "--all").stdout


def test_a_secret_is_asked_for_and_not_shown(brokers: AdminBrokers) -> None:
    broker = ("configs", "alter", "--broker", "1")
    result = invoke(*broker, "--set", "ssl.key.password=hidden-one")
    assert result.exit_code == 2
    assert "give it with --ask KEY" in result.stderr
    result = invoke(*broker, "--ask", "ssl.key.password", "--json", stdin="hidden-two\n")
    assert document(result)["set"] == {"ssl.key.password": "(hidden)"}
    (request,) = brokers.sent(IncrementalAlterConfigsRequest)
    assert request.resources[0].configs[0].value == "hidden-two"


def test_describe_tells_programs_everything(brokers: AdminBrokers) -> None:
    found = document(invoke("configs", "describe", "--topic", "t", "--json"))
    assert (found["resource_type"], found["resource_name"]) == ("topic", "t")
    assert found["configs"][0] == {
        "name": "c.d",
        "value": "2",
        "source": "topic_config",
        "default": False,
        "read_only": False,
        "sensitive": False,
        "effect": True,
        "documentation": "",
    }


def test_alter_sets_and_deletes(brokers: AdminBrokers) -> None:
    arguments = ["--topic", "t", "--set", "a.b=x=y", "--delete", "c.d"]
    assert document(invoke("configs", "alter", *arguments, "--json")) == {
        "resource_type": "topic",
        "resource_name": "t",
        "set": {"a.b": "x=y"},
        "deleted": ["c.d"],
    }
    (request,) = brokers.sent(IncrementalAlterConfigsRequest)
    changes = [
        (config.name, config.config_operation, config.value)
        for config in request.resources[0].configs
    ]
    assert changes == [("a.b", 0, "x=y"), ("c.d", 1, None)]
    assert invoke("configs", "alter", *arguments).stdout == "changed the settings of topic t\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["describe"], "Give one of --topic, --broker, --broker-logger, --client-metrics, --gro"),
        (["describe", "--topic", "t", "--broker", "1"], "Give one of --topic, --broker"),
        (["alter", "--topic", "t"], "Nothing to change"),
        (["alter", "--topic", "t", "--set", "a=1", "--delete", "a"], "both set and deleted"),
        (["alter", "--topic", "t", "--set", "a=1", "--set", "a=2"], "--set gives a twice"),
    ],
)
def test_wrong_usage_is_refused(brokers: AdminBrokers, arguments: list[str], text: str) -> None:
    result = invoke("configs", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert brokers.requests == []


def test_a_broker_that_does_not_exist_is_named_with_those_that_do(brokers: AdminBrokers) -> None:
    result = invoke("configs", "describe", "--broker", "9")
    assert result.exit_code == 1
    assert result.stderr == "headrace: there is no broker 9; the cluster has 1\n"


def test_a_setting_without_effect_is_shown_as_such(brokers: AdminBrokers) -> None:
    entry = DescribeConfigsResourceResult(
        name="num.io.threads",
        value="9",
        config_source=4,
        documentation=f"{NO_EFFECT} Threads that work on requests.",
    )
    described = DescribeConfigsResponse(results=[DescribeConfigsResult(configs=[entry])])
    brokers._DescribeConfigs = lambda node, request: described  # type: ignore[attr-defined]
    assert invoke("configs", "describe", "--broker", "1").stdout.splitlines() == [
        "SETTING         VALUE  SOURCE                CHANGEABLE",
        "num.io.threads  9      static_broker_config  no effect",
    ]
    [found] = document(invoke("configs", "describe", "--broker", "1", "--json"))["configs"]
    assert found["effect"] is False


@pytest.mark.parametrize(
    ("option", "name", "kind", "text"),
    [
        ("--group", "g", 32, "group g"),
        ("--client-metrics", "m", 16, "client metrics m"),
        ("--broker-logger", "1", 8, "broker logger 1"),
    ],
)
def test_other_resources_are_named_by_options_of_their_own(
    brokers: AdminBrokers, option: str, name: str, kind: int, text: str
) -> None:
    result = invoke("configs", "alter", option, name, "--set", "a=b")
    assert result.stdout == f"changed the settings of {text}\n"
    (request,) = brokers.sent(IncrementalAlterConfigsRequest)
    [resource] = request.resources
    assert (resource.resource_type, resource.resource_name) == (kind, name)


def test_list_shows_what_can_have_settings(brokers: AdminBrokers) -> None:
    found = [
        ConfigResource(resource_name="m", resource_type=16),
        ConfigResource(resource_name="1", resource_type=8),
    ]
    listed = ListConfigResourcesResponse(config_resources=found)
    brokers._ListConfigResources = lambda node, request: listed  # type: ignore[attr-defined]
    arguments = ("configs", "list", "--kind", "client-metrics", "--kind", "broker-logger")
    assert invoke(*arguments).stdout.splitlines() == [
        "KIND            NAME",
        "client-metrics  m",
        "broker-logger   1",
    ]
    assert document(invoke(*arguments, "--json")) == {
        "resources": {"client_metrics": ["m"], "broker_logger": ["1"]}
    }
    assert [request.resource_types for request in brokers.sent(ListConfigResourcesRequest)] == [
        [16, 8]
    ] * 2
