"""Write the reference of docs/pipelines.md from the table of keys that reads a pipeline file.

    python tools/make_pipeline_docs.py

A test fails when the page is not what this would write.
"""

from pathlib import Path

from headrace.pipelines.spec.sections import Section, SectionKey
from headrace.pipelines.spec.table import SECTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "pipelines.md"
HEADING = "## Every key\n"

INTRODUCTION = """\
This section is made from the code by `tools/make_pipeline_docs.py`; change a key's text where it is
declared, in `src/headrace/pipelines/spec`.
"""


def reference() -> str:
    """The text of the section."""
    return "\n".join([INTRODUCTION, *(_section(section) for section in SECTIONS)])


def with_reference(page: str, text: str) -> str:
    """The page with the text of its reference replaced."""
    before, heading, rest = page.partition(HEADING)
    if not heading:
        raise SystemExit(f"{PAGE.name} has no line {HEADING.strip()!r}")
    _, next_heading, more = rest.partition("\n## ")
    return f"{before}{heading}\n{text}{next_heading}{more}"


def _section(section: Section) -> str:
    title = section.name[0].upper() + section.name[1:]
    lines = [f"### {title}", ""]
    if section.text:
        lines += [section.text, ""]
    lines += [
        "| Key | Value | Default | Meaning |",
        "| --- | --- | --- | --- |",
        *(_row(key, section) for key in section.keys),
        "",
    ]
    return "\n".join(lines)


def _row(key: SectionKey, section: Section) -> str:
    default = key.default
    if key.required:
        default = "*required*"
    elif key.name in section.one_of:
        default = "*required*" if len(section.one_of) == 1 else "*one of these*"
    cells = (f"`{key.name}`", key.kind.label, default or "none", key.text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    PAGE.write_text(with_reference(PAGE.read_text(), reference()))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
