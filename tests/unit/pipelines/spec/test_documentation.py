"""docs/pipelines.md: its reference is that of the code, and what it shows is right."""

import re
from pathlib import Path

import pytest

from headrace.pipelines import load
from headrace.pipelines.spec.sections import anchor
from headrace.pipelines.spec.table import SECTIONS
from tools import make_pipeline_docs

PAGE = make_pipeline_docs.PAGE.read_text()


def test_reference_is_up_to_date() -> None:
    text = make_pipeline_docs.with_reference(PAGE, make_pipeline_docs.reference())
    assert text == PAGE, "run tools/make_pipeline_docs.py"


def test_every_link_within_the_page_leads_somewhere() -> None:
    headings = {anchor(heading) for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)}
    links = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert links - headings == set()
    assert {anchor(section.name) for section in SECTIONS} <= headings


def test_reference_can_be_renewed_between_other_sections() -> None:
    page = "# A\n\n## Every key\n\nold\n\n## After\n\nmore\n"
    renewed = make_pipeline_docs.with_reference(page, "new\n")
    assert renewed == "# A\n\n## Every key\n\nnew\n\n## After\n\nmore\n"
    assert make_pipeline_docs.with_reference("## Every key\n\nold\n", "new\n") == (
        "## Every key\n\nnew\n"
    )
    with pytest.raises(SystemExit, match="has no line '## Every key'"):
        make_pipeline_docs.with_reference("# A\n", "new\n")


def test_first_pipelines_of_the_page_are_right_as_they_stand(tmp_path: Path) -> None:
    [yaml, *_] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [python, *_] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "p.yaml").write_text(yaml)
    (tmp_path / "p.py").write_text(python)
    from_yaml, from_python = load(tmp_path / "p.yaml"), load(tmp_path / "p.py")
    assert from_yaml.name == from_python.name
    assert from_yaml.sources[0].name == from_python.sources[0].name == "orders"
