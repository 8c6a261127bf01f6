"""Write the file map of docs/architecture.md from the modules' own docstrings.

A module's line is the first sentence of its docstring, so there is one place to say what it is.
"""

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
HEADING = "## File map\n"


def summary(source: str) -> str:
    """The first sentence of a module's docstring, on one line and without its full stop."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    paragraph = " ".join(docstring.split("\n\n", 1)[0].split())
    return re.split(r"\.(?:\s|$)", paragraph, maxsplit=1)[0]


def file_map(package: Path) -> str:
    """A list of the modules of every package; a package's own line comes from its `__init__`."""
    directories = sorted({path.parent for path in package.rglob("*.py")})
    parts = []
    for directory in directories:
        modules = sorted(path for path in directory.glob("*.py") if path.name != "__init__.py")
        if not modules:
            continue
        opening = directory / "__init__.py"
        about = summary(opening.read_text()) if opening.exists() else ""
        name = directory.relative_to(package.parent).as_posix()
        lines = [f"**{name}**" + (f": {about}" if about else ""), ""]
        for path in modules:
            lines.append(f"- `{path.relative_to(package).as_posix()}`: {summary(path.read_text())}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def with_file_map(page: str, text: str) -> str:
    """The page with the text of its file map section replaced."""
    before, heading, rest = page.partition(HEADING)
    if not heading:
        raise SystemExit(f"{PAGE.name} has no line {HEADING.strip()!r}")
    after = rest.partition("\n## ")[2]
    return f"{before}{heading}\n{text}\n## {after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    PAGE.write_text(with_file_map(PAGE.read_text(), file_map(ROOT / "src" / "headrace")))


if __name__ == "__main__":
    main()
