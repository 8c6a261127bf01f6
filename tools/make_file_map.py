"""Write docs/modules.md, a line about every module, from the modules' own docstrings.

A module's line is the first sentence of its docstring, so its purpose is described in one place.
"""

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "modules.md"
# Packages of data modules that differ only in their subject: a single line describes the package.
TABLES = ("config/kafka_settings", "protocol/messages")
HEAD = """\
# Modules

A line about every module, in the words of its docstring. Paths are below `src/headrace`. How the
packages fit together is in [architecture.md](architecture.md), where to begin with a change in
[where-to-start.md](where-to-start.md). `tools/make_file_map.py` writes this page.
"""


def summary(source: str) -> str:
    """The first sentence of a module's docstring, on one line and without its full stop."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    paragraph = " ".join(docstring.split("\n\n", 1)[0].split())
    return re.split(r"\.(?:\s|$)", paragraph, maxsplit=1)[0]


def is_table(name: str) -> bool:
    """Whether a module, as a path below the package, is a data table without a line."""
    return name.startswith(tuple(f"{table}/" for table in TABLES))


def modules_page(package: Path) -> str:
    """The page: the modules of every package, under the line of the package's `__init__`."""
    parts = [HEAD]
    for directory in sorted({path.parent for path in package.rglob("*.py")}):
        modules = sorted(path for path in directory.glob("*.py") if path.name != "__init__.py")
        if not modules:
            continue
        opening = directory / "__init__.py"
        about = summary(opening.read_text()) if opening.exists() else ""
        name = directory.relative_to(package.parent).as_posix()
        names = {path.relative_to(package).as_posix(): path for path in modules}
        lines = [
            f"- `{listed}`: {summary(path.read_text())}"
            for listed, path in names.items()
            if not is_table(listed)
        ]
        if not lines:
            about += f" ({len(modules)} modules)"
        heading = f"**{name}**" + (f": {about}" if about else "")
        parts.append("\n".join([heading, *(["", *lines] if lines else [])]) + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    PAGE.write_text(modules_page(ROOT / "src" / "headrace"))


if __name__ == "__main__":
    main()
