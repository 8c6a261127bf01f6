"""Roles in the metadata: who is a member, and what may be changed."""

import pytest

from headrace.metadata.configs import ConfigOperation
from headrace.metadata.image import Image
from headrace.metadata.role_settings import roles_of_members
from tests.unit.metadata.test_configs import alter, resource

ROLE = 100
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE


def change(image: Image, *changes: tuple[str, int, str | None], name: str = "readers") -> Image:
    after, [answer] = alter(image, resource(ROLE, name, *changes))
    assert answer == ""
    return after


def refusal(image: Image, *changes: tuple[str, int, str | None], name: str = "readers") -> str:
    after, [answer] = alter(image, resource(ROLE, name, *changes))
    assert after.configs == image.configs
    return answer


def test_members_have_all_their_roles() -> None:
    image = change(Image(), ("description", SET, "read"), ("member:User:CN=a,O=b", SET, "bound"))
    image = change(image, ("member:Group:staff", SET, "bound"))
    image = change(
        image, ("description", SET, ""), ("member:Group:staff", SET, "bound"), name="all"
    )
    assert roles_of_members(image.configs) == {
        "User:CN=a,O=b": ("readers",),
        "Group:staff": ("all", "readers"),
    }
    image = change(image, ("member:Group:staff", DELETE, None))
    assert roles_of_members(image.configs)["Group:staff"] == ("all",)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("member:alice", "cannot be a member"),
        ("member:Role:other", "cannot be a member"),
        ("member:User:", "cannot be a member"),
        ("retention.ms", "no setting 'retention.ms'"),
    ],
)
def test_what_is_no_member_is_refused(setting: str, reason: str) -> None:
    image = change(Image(), ("description", SET, ""))
    assert reason in refusal(image, (setting, SET, "bound"))


def test_a_role_is_made_before_its_members_and_deleted_after_them() -> None:
    assert "there is no role 'readers'" in refusal(Image(), ("member:User:a", SET, "bound"))
    image = change(Image(), ("description", SET, ""), ("member:User:a", SET, "bound"))
    assert "still has members" in refusal(image, ("description", DELETE, None))
    image = change(image, ("member:User:a", DELETE, None), ("description", DELETE, None))
    assert image.configs == {}


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, "a:b", "a/b"])
def test_names_of_roles_are_plain(name: str) -> None:
    assert "is no name of a role" in refusal(Image(), ("description", SET, ""), name=name)
