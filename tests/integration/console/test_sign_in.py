"""Sign-in to the console of a cluster with SASL: who gets in, as whom, and how often."""

from collections.abc import Iterator

import pytest

from headrace import Admin, ScramUpsertion
from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterConnection
from headrace.console.sessions import FAILURES_MAX
from headrace.testing import Broker
from tests.integration.console.http_viewer import HttpViewer, Page
from tests.integration.console.watched_pages import RunningConsole

ALICE = "alice-secret"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker where `admin` may do everything, and alice nothing."""
    with Broker(security=True, in_process=True) as running:
        with Admin(**running.client_options) as admin:
            mechanism = running.client_config["sasl.mechanism"]
            admin.alter_user_scram_credentials([ScramUpsertion("alice", mechanism, ALICE)])
            admin.create_topic("orders", 1, 1)
        yield running


@pytest.fixture(scope="module")
def secured(broker: Broker) -> Iterator[RunningConsole]:
    """A console of it, which is given the login of nobody but has that of `admin` in its file."""
    connection = ClusterConnection(broker.bootstrap_servers, broker.client_config)
    with RunningConsole(ConsoleSettings(connection, signs_in=True, interval_s=0.2)) as running:
        yield running


def sign_in(viewer: HttpViewer, user: str, password: str) -> Page:
    viewer.get("/sign-in")
    return viewer.post("/sign-in?next=%2Ftopics", {"user": user, "password": password})


def test_nothing_is_shown_before_the_sign_in(secured: RunningConsole) -> None:
    viewer = secured.viewer()
    for path in ("/", "/events", "/topics?q=x"):
        answer = viewer.get(path)
        assert answer.status == 303
        assert answer.location.startswith("/sign-in?next=%2F")
    assert viewer.get("/sign-in").status == 200


def test_a_session_begins_with_the_password_and_ends_with_the_sign_out(
    secured: RunningConsole, broker: Broker
) -> None:
    viewer = secured.viewer()
    before = dict(viewer.cookies)
    answer = sign_in(viewer, "admin", broker.client_config["sasl.password"])
    assert (answer.status, answer.location) == (303, "/topics")
    # A cookie that somebody planted before is not the session's.
    assert viewer.cookies != before
    assert "admin" in viewer.get("/").words
    stolen = HttpViewer(secured.url, dict(viewer.cookies))
    assert viewer.post("/sign-out").status == 303
    assert stolen.get("/").status == 303


def test_the_console_acts_as_the_viewer_and_not_as_its_own_user(secured: RunningConsole) -> None:
    viewer = secured.viewer()
    assert sign_in(viewer, "alice", ALICE).status == 303
    answer = viewer.get("/")
    assert answer.status == 200
    assert "orders" not in answer.words


def test_wrong_passwords_are_refused_and_soon_not_even_tried(secured: RunningConsole) -> None:
    viewer = secured.viewer()
    for _ in range(FAILURES_MAX):
        answer = sign_in(viewer, "mallory", "guess")
        assert answer.status == 401
        assert "does not know this user" in answer.words
    assert sign_in(viewer, "mallory", "guess").status == 429
    # Of another user's sign-in at the same address nothing is kept.
    assert sign_in(viewer, "alice", ALICE).status == 303


@pytest.mark.parametrize("there", ["//evil.example/", "https://evil.example/", "/\\evil.example"])
def test_the_sign_in_leads_to_pages_of_the_console_only(
    secured: RunningConsole, there: str
) -> None:
    viewer = secured.viewer()
    viewer.get("/sign-in")
    answer = viewer.post(f"/sign-in?next={there}", {"user": "alice", "password": ALICE})
    assert (answer.status, answer.location) == (303, "/")


def test_rights_follow_the_acls_of_the_viewer(secured: RunningConsole, broker: Broker) -> None:
    alice, admin = secured.viewer(), secured.viewer()
    sign_in(alice, "alice", ALICE)
    sign_in(admin, "admin", broker.client_config["sasl.password"])
    refused = alice.submit("/new-topic", {"name": "alices"})
    assert refused.status == 400
    assert "authoriz" in refused.words.lower()
    assert "cannot be shown" in alice.get("/acls").words
    acl = {
        "principal": "User:alice",
        "operation": "create",
        "resource_type": "topic",
        "resource_name": "alice",
        "pattern": "prefixed",
    }
    assert "Added: allow User:alice create" in admin.submit("/acls", acl).words
    assert alice.submit("/new-topic", {"name": "alices", "replicas": "1"}).status in (200, 403)
    with Admin(**broker.client_options) as client:
        assert "alices" in client.list_topics()
    assert "Removed" in admin.submit("/acls", {**acl, "action": "delete"}).words
    role = {"role": "readers", "action": "create", "description": "who may read"}
    assert "Role readers was made" in admin.submit("/roles", role).words
    bound = admin.submit("/roles", {"role": "readers", "action": "bind", "member": "User:alice"})
    assert "User:alice has the role readers." in bound.words
