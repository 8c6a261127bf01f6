"""Build the documentation as a site: build/docs/site, and an archive of it for `headrace docs`.

    python tools/build_docs.py              the site and src/headrace/documentation.zip
    python tools/build_docs.py --no-archive the site alone

The pages are the Markdown of docs/ and of the few files in PAGES_ELSEWHERE. They are copied to
build/docs/pages, with links that lead elsewhere on the site, and built by Zensical, which refuses
links and anchors that lead nowhere.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "zensical.toml"
BUILD = ROOT / "build" / "docs"
ARCHIVE = ROOT / "src" / "headrace" / "documentation.zip"

# Pages of the site that are not in docs/, where GitHub and other tools look for them.
PAGES_ELSEWHERE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "deploy/README.md": "deployment.md",
    "examples/pipelines/README.md": "pipeline-examples.md",
    "examples/declarative/README.md": "declarative-example.md",
}
DESIGN = ROOT / "docs" / "design"
DESIGN_PAGES = '"design/*"'
DESIGN_INDEX = "design/index.md"

# Entries of an archive have one time, so that equal sites make equal archives.
ARCHIVE_TIME = (2020, 1, 1, 0, 0, 0)

_FENCE = re.compile(r"^\s*(```+|~~~+)")
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$")
_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")
_TAG = re.compile(r"</?(?:details|summary)>|<br ?/?>")


@dataclass
class Site:
    """The files of the site: where each comes from in the tree, and its path on the site."""

    paths: dict[Path, str]
    problems: list[str] = field(default_factory=list)

    def staged(self, source: Path) -> str:
        """The text of a page, with the links as they are on the site."""
        return "\n".join(self._lines(source)) + "\n"

    def _lines(self, source: Path) -> Iterator[str]:
        for line, is_code in with_code_marked(source.read_text()):
            if is_code:
                yield line
            else:
                # GitHub reads Markdown inside of <details> without being told to.
                text = line.replace("<details>", "<details markdown>")
                yield _LINK.sub(lambda found: self._link(source, found), text)

    def _link(self, source: Path, found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        file = Path(os.path.normpath(source.parent / target))
        page = DESIGN_INDEX if file == DESIGN else self.paths.get(file)
        if page is None:
            if not file.exists():
                self.problems.append(f"{os.path.relpath(source, ROOT)}: no such file: {target}")
            # What is not on the site, such as a source file, is named and not linked.
            return found["text"]
        here = Path(self.paths[source]).parent
        relative = os.path.relpath(page, here)
        suffix = f"#{anchor}" if anchor else ""
        return f"{found['image']}[{found['text']}]({relative}{suffix})"


def site() -> Site:
    """The site of this tree."""
    paths = {ROOT / name: page for name, page in PAGES_ELSEWHERE.items()}
    for file in sorted((ROOT / "docs").rglob("*")):
        if file.is_file():
            name = file.relative_to(ROOT / "docs")
            # GitHub shows a README below the list of the files.
            paths[file] = (
                name.with_stem("index").as_posix() if name.name == "README.md" else str(name)
            )
    return Site(paths)


def with_code_marked(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page, each with whether it is part of a block of code."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield line, True
        elif found and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
            yield line, True
        else:
            yield line, bool(fence)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings as GitHub makes them; the site makes the same."""
    found: dict[str, int] = {}
    for line, is_code in with_code_marked(text):
        heading = None if is_code else _HEADING.match(line)
        if heading is None:
            continue
        words = _LINK.sub(lambda link: link["text"], heading[1])
        plain = re.sub(r"[*`]", "", _TAG.sub("", words)).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = found.get(slug, -1) + 1
        found[slug] = count
        if count:
            found[f"{slug}-{count}"] = 0
    return set(found)


def links(text: str) -> Iterator[tuple[str, str]]:
    """The links of a page inside the tree: the file as it is written, and the anchor."""
    for line, is_code in with_code_marked(text):
        for link in [] if is_code else _LINK.finditer(_CODE.sub("", line)):
            target, _, anchor = link["target"].partition("#")
            if "://" not in target and not target.startswith("mailto:"):
                yield target, anchor


def nav_pages(config: str) -> list[str]:
    """The pages that the navigation names, in its order."""

    def pages(items: list[Any]) -> Iterator[str]:
        for item in items:
            if isinstance(item, str):
                yield item
            else:
                [value] = item.values()
                yield from [value] if isinstance(value, str) else pages(value)

    return list(pages(tomllib.loads(config)["project"]["nav"]))


def rendered_config(paths: dict[Path, str]) -> str:
    """The settings of Zensical, with all design pages in the navigation."""
    pages = sorted(page for page in paths.values() if page.startswith("design/"))
    # The index is the page of the section itself.
    names = ",\n      ".join(f'"{page}"' for page in [DESIGN_INDEX, *pages])
    text = CONFIG.read_text()
    assert DESIGN_PAGES in text
    return text.replace(DESIGN_PAGES, names)


def design_index() -> str:
    """The page that lists the design pages; GitHub lists the files of the directory instead."""
    lines = ["# Decisions", "", "Those that are hard to take back, and what was rejected.", ""]
    for file in sorted(DESIGN.glob("*.md")):
        title = file.read_text().partition("\n")[0].removeprefix("# ")
        name = re.sub(r"^\d+\W+", "", title)
        lines.append(f"- {file.name[:4]}: [{name}]({file.name})")
    return "\n".join(lines) + "\n"


def stage() -> list[str]:
    """Copy the pages to build/docs/pages; what is wrong with them."""
    shutil.rmtree(BUILD, ignore_errors=True)
    found = site()
    for source, page in found.paths.items():
        target = BUILD / "pages" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(found.staged(source))
        else:
            shutil.copyfile(source, target)
    (BUILD / "pages" / DESIGN_INDEX).write_text(design_index())
    (BUILD / "zensical.toml").write_text(rendered_config(found.paths))
    return found.problems


def build() -> int:
    """Build the staged pages; the exit status of Zensical."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    environment = {**os.environ, "NO_COLOR": "1"}
    result = subprocess.run(
        [*command, "-f", str(BUILD / "zensical.toml")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        print(result.stdout + result.stderr, file=sys.stderr)
    return result.returncode


def remote_resources(pages: Path) -> list[str]:
    """What the built pages would load from other hosts."""
    loaded = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(?:https?:)?//[^\"'\s>]+"
        r"|<link(?=[^>]*rel=[\"']?(?:stylesheet|preload|icon|preconnect))[^>]*href=[\"']?(?:https?:)?//[^\"'\s>]+"
    )
    return [
        f"{page.relative_to(pages)}: {found[0]}"
        for page in sorted(pages.rglob("*.html"))
        for found in loaded.finditer(page.read_text())
    ]


def write_archive(pages: Path, archive: Path) -> None:
    """The site as one file, the same for the same site."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as output:
        for file in sorted(pages.rglob("*")):
            if file.is_file() and file.suffix != ".map":
                entry = zipfile.ZipInfo(file.relative_to(pages).as_posix(), ARCHIVE_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                output.writestr(entry, file.read_bytes())


def main() -> int:
    """Build it all; 1 if a page has a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-archive", action="store_true", help="leave the package as it is")
    options = parser.parse_args()
    problems = stage()
    status = build() if not problems else 1
    if status == 0:
        problems += remote_resources(BUILD / "site")
    for problem in problems:
        print(problem, file=sys.stderr)
    if status or problems:
        return 1
    if not options.no_archive:
        write_archive(BUILD / "site", ARCHIVE)
    print(f"{(BUILD / 'site' / 'index.html').relative_to(ROOT)}; `headrace docs` shows it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
