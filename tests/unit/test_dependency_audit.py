"""The audit of pinned dependencies finds what would let an unknown version in."""

from dataclasses import dataclass, field

import pytest

from tools.dependency_audit import Exceptions, Inputs, Package, page, problems, read_pins


@dataclass
class Tree:
    """A sound set of dependencies: `web` of the core requires `deep`, `check` is for tests."""

    pins: dict[str, str] = field(
        default_factory=lambda: {"web": "1.2", "deep": "3.0", "check": "5.0"}
    )
    core: tuple[str, ...] = ("web>=1,<2",)
    installed: dict[str, Package] = field(
        default_factory=lambda: {
            "web": Package("1.2", ("Deep>=3", "extra-only; extra == 'fast'"), "MIT"),
            "deep": Package("3.0", ("old; python_version < '3.11'",), "BSD-3-Clause"),
            "check": Package("5.0", (), "MPL-2.0"),
        }
    )
    licences: dict[str, str] = field(default_factory=lambda: {"check": "tests only"})
    absent: dict[str, dict[str, str]] = field(default_factory=dict)

    def inputs(self) -> Inputs:
        declared = {"core": self.core, "dev": ("check",)}
        return Inputs(self.pins, declared, self.installed, Exceptions(self.licences, self.absent))


def test_a_sound_set_has_no_problems_and_a_page_that_says_what_needs_it() -> None:
    inputs = Tree().inputs()
    assert problems(inputs) == []
    text = page(inputs)
    assert "| deep | 3.0 | core | BSD-3-Clause |\n" in text
    assert "| check | 5.0 | dev | MPL-2.0: tests only |\n" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree.pins.pop("deep"), "deep, which web requires, is not pinned"),
        (lambda tree: tree.pins.update(web="2.1"), "headrace requires web<2,>=1, and 2.1 is"),
        (lambda tree: tree.pins.update(deep="2.9"), "web requires Deep>=3, and 2.9 is pinned"),
        (lambda tree: tree.pins.update(spare="1"), "spare is pinned, and nothing requires it"),
        (lambda tree: tree.installed.pop("check"), "check is pinned and not installed"),
        (
            lambda tree: tree.installed.update(deep=Package("3.1", (), "MIT")),
            "deep 3.1 is installed, and 3.0 is pinned",
        ),
        (
            lambda tree: tree.installed.update(deep=Package("3.0", (), "SSPL")),
            r"the licence of deep \(SSPL\) is none of the usual ones",
        ),
        (
            lambda tree: tree.installed.update(
                web=Package("1.2", ("deep @ https://host.example/deep.tar.gz",), "MIT")
            ),
            "web takes deep from an address",
        ),
        # A requirement of a Python or a machine that is not the one of this run counts as well.
        (
            lambda tree: tree.installed.update(
                deep=Package("3.0", ("late; python_version >= '3.14'",), "MIT")
            ),
            "late, which deep requires, is not pinned",
        ),
        (lambda tree: tree.licences.update(gone="x"), "dependencies.toml has gone, which is not"),
    ],
)
def test_what_is_not_accounted_for_is_named(change, said: str) -> None:
    tree = Tree()
    change(tree)
    with pytest.raises(AssertionError, match=said):
        assert not problems(tree.inputs()), "\n".join(problems(tree.inputs()))


def test_extras_are_followed_where_they_are_asked_for() -> None:
    tree = Tree(core=("web[fast]",))
    assert "extra-only, which web requires, is not pinned" in problems(tree.inputs())[0]


def test_constraints_are_exact_versions() -> None:
    pins, found = read_pins("# why\nA_b==1.0\nc>=2\nd==1.*\na-b==2 # again\n\n")
    assert pins == {"a-b": "2"}
    assert [text.rpartition(": ")[2] for text in found] == ["c>=2", "d==1.*", "a-b is pinned twice"]
