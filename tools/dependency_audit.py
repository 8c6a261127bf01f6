"""Audit of the pinned dependencies, without the network, and docs/dependencies.md.

    python tools/dependency_audit.py            what is wrong; `make check` runs it
    python tools/dependency_audit.py --write    renew the page

It reads constraints.txt, pyproject.toml, tools/dependencies.toml, and the metadata of what is
installed. Every requirement, direct or transitive, on any supported Python, must be pinned to one
version that fits, what is installed must be that version, every pin must be needed by something,
and every licence accepted. It knows no advisories: `make audit` asks for those.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name as _canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "dependencies.md"
PROJECT = "headrace"
CORE = "core"
# Where tests and tools run, which the wheel brings to nobody.
DEVELOPMENT = frozenset({"dev", "build"})

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+]+)\Z")
# Licences that ask for no more than their text. Others need a reason in tools/dependencies.toml.
_PERMISSIVE = re.compile(
    r"(?:MIT|MIT-0|0BSD|BSD|Apache|PSF|Python|Zlib|CC0|ISC)\b|3-Clause BSD", re.IGNORECASE
)
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_MACHINES = ("x86_64", "aarch64")

PAGE_HEAD = """\
# Dependencies

This page is made by `tools/dependency_audit.py --write` of `constraints.txt`, `pyproject.toml` and
the metadata of the packages. Everything that `make venv` installs is pinned to one version,
transitive requirements included; `pip install headrace` takes the ranges of `pyproject.toml`.

`make check` finds, without the network: a requirement that is not pinned, on any supported Python;
a pin that does not fit its range, differs from what is installed, or that nothing needs; a package
that is not from the index; a licence that nobody has looked at. It cannot know of vulnerabilities,
and it compares no hashes: pip checks those of the index. `make audit` runs pip-audit over the same
pins where the advisories of the index can be reached, and fails if there is one for any of them,
or if a package could not be looked up. It should run before each release, and on a schedule where
the repository is kept.

"Needed by" is `core` for what every installation has, else the extras.

| Package | Version | Needed by | Licence |
|---|---|---|---|
"""


def canonical(name: str) -> str:
    """A package's name in the form that tells whether two are the same."""
    return str(_canonicalize_name(name))


class Package(NamedTuple):
    """An installed package: its version, requirements and licence, as its metadata has them."""

    version: str
    requirements: tuple[str, ...]
    licence: str


class Exceptions(NamedTuple):
    """tools/dependencies.toml: licences that were looked at, and packages not installed here.

    `absent` has the licence of each, and the extra or the reason that it is pinned for.
    """

    licences: Mapping[str, str]
    absent: Mapping[str, Mapping[str, str]]


class Inputs(NamedTuple):
    """All that an audit looks at."""

    pins: Mapping[str, str]
    declared: Mapping[str, tuple[str, ...]]
    installed: Mapping[str, Package]
    exceptions: Exceptions


def read_pins(text: str) -> tuple[dict[str, str], list[str]]:
    """The pinned version of each package, and what is wrong with the lines."""
    pins: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        match = _PIN.match(content)
        if not content:
            continue
        if match is None:
            problems.append(f"line {number} of the constraints is no NAME==VERSION: {content}")
            continue
        name = canonical(match["name"])
        if name in pins:
            problems.append(f"{name} is pinned twice")
        pins[name] = match["version"]
    return pins, problems


def declared_requirements(project: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The requirements of pyproject.toml by what they are for: core, build, or an extra."""
    table = project["project"]
    return {
        CORE: tuple(table["dependencies"]),
        "build": tuple(project["build-system"]["requires"]),
        **{name: tuple(texts) for name, texts in table["optional-dependencies"].items()},
    }


def environments() -> list[dict[str, str]]:
    """The environments that headrace supports, as markers of requirements see them."""
    return [
        {
            **{name: str(text) for name, text in default_environment().items()},
            "implementation_name": "cpython",
            "implementation_version": f"{python}.9",
            "os_name": "posix",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{python}.9",
            "python_version": python,
            "sys_platform": "linux",
        }
        for python in _PYTHONS
        for machine in _MACHINES
    ]


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether some supported environment needs a requirement, with these extras of its owner."""
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate({**environment, "extra": extra})
        for environment in environments()
        for extra in (*extras, "")
    )


def needed_by(inputs: Inputs) -> tuple[dict[str, set[str]], list[str]]:
    """What needs each package, directly or not, and the problems of requirements."""
    found: dict[str, set[str]] = {}
    problems: list[str] = []
    for purpose, texts in inputs.declared.items():
        waiting: list[tuple[str, str, tuple[str, ...]]] = [(PROJECT, text, ("",)) for text in texts]
        seen = set()
        while waiting:
            owner, text, extras = waiting.pop()
            if (owner, text, extras) in seen:
                continue
            seen.add((owner, text, extras))
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                problems.append(f"{owner} has a requirement that cannot be read: {text}")
                continue
            name = canonical(requirement.name)
            if name == PROJECT or not applies(requirement, extras):
                continue
            found.setdefault(name, set()).add(purpose)
            problems += _problems_of(owner, requirement, inputs.pins)
            package = inputs.installed.get(name)
            if package is not None:
                own = tuple(sorted(requirement.extras)) or ("",)
                waiting += [(name, wanted, own) for wanted in package.requirements]
    for name, row in inputs.exceptions.absent.items():
        found.setdefault(name, set()).add(row["needed_by"])
    return found, list(dict.fromkeys(problems))


def _problems_of(owner: str, requirement: Requirement, pins: Mapping[str, str]) -> list[str]:
    name = canonical(requirement.name)
    if requirement.url is not None:
        return [f"{owner} takes {name} from an address, and not from the index"]
    version = pins.get(name)
    if version is None:
        return [f"{name}, which {owner} requires, is not pinned: add it to constraints.txt"]
    if not requirement.specifier.contains(version, prereleases=True):
        return [f"{owner} requires {requirement}, and {version} is pinned"]
    return []


def problems(inputs: Inputs) -> list[str]:
    """What is wrong with the dependencies, a sentence for each."""
    needed, found = needed_by(inputs)
    for name, version in inputs.pins.items():
        if name not in needed:
            found.append(f"{name} is pinned, and nothing requires it: take it away")
        package = inputs.installed.get(name)
        if package is None:
            if name not in inputs.exceptions.absent:
                found.append(
                    f"{name} is pinned and not installed: run `make venv`, or say in"
                    " tools/dependencies.toml why it is not"
                )
        elif package.version != version:
            found.append(f"{name} {package.version} is installed, and {version} is pinned")
        licence = licence_of(name, inputs)
        if not _PERMISSIVE.match(licence) and name not in inputs.exceptions.licences:
            found.append(
                f"the licence of {name} ({licence or 'unknown'}) is none of the usual ones: look"
                " at it, and note it in tools/dependencies.toml"
            )
    for name in (*inputs.exceptions.licences, *inputs.exceptions.absent):
        if name not in inputs.pins:
            found.append(f"tools/dependencies.toml has {name}, which is not pinned")
    return found


def licence_of(name: str, inputs: Inputs) -> str:
    """The licence of a package: as its metadata has it, or as it was noted."""
    package = inputs.installed.get(name)
    if package is not None:
        return package.licence
    return inputs.exceptions.absent.get(name, {}).get("licence", "")


def page(inputs: Inputs) -> str:
    """The text of docs/dependencies.md."""
    needed, _ = needed_by(inputs)
    rows = []
    for name, version in sorted(inputs.pins.items()):
        purposes = needed.get(name, set())
        # What a user gets says more than that the tests have it too.
        shown = {CORE} if CORE in purposes else purposes - DEVELOPMENT or purposes
        note = inputs.exceptions.licences.get(name)
        licence = licence_of(name, inputs) + (f": {note}" if note else "")
        rows.append(f"| {name} | {version} | {', '.join(sorted(shown))} | {licence} |\n")
    return PAGE_HEAD + "".join(rows)


def installed_packages() -> dict[str, Package]:
    """The packages of this environment."""
    found: dict[str, Package] = {}
    for distribution in distributions():
        metadata = distribution.metadata
        found[canonical(metadata["Name"])] = Package(
            distribution.version, tuple(distribution.requires or ()), _licence(metadata)
        )
    return found


def _licence(metadata: Any) -> str:
    classifiers = [
        text.rpartition("::")[2].strip()
        for text in metadata.get_all("Classifier", [])
        if text.startswith("License ::") and "DFSG" not in text
    ]
    expression = metadata.get("License-Expression")
    free_text = (metadata.get("License") or "").strip()
    # Some packages have the whole text there.
    short = free_text if "\n" not in free_text and len(free_text) < 60 else ""
    return str(expression or " or ".join(classifiers) or short)


def read_inputs() -> tuple[Inputs, list[str]]:
    """All inputs from their files, and what is wrong with the constraints themselves."""
    pins, found = read_pins((ROOT / "constraints.txt").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    noted = tomllib.loads((ROOT / "tools" / "dependencies.toml").read_text())
    inputs = Inputs(
        pins,
        declared_requirements(project),
        installed_packages(),
        Exceptions(noted["licences"], noted["absent"]),
    )
    return inputs, found


def main(arguments: list[str]) -> int:
    inputs, found = read_inputs()
    found += problems(inputs)
    if "--write" in arguments:
        PAGE.write_text(page(inputs))
        print(f"wrote {PAGE}")
    elif not PAGE.exists() or PAGE.read_text() != page(inputs):
        found.append("docs/dependencies.md is out of date: run tools/dependency_audit.py --write")
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
