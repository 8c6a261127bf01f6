"""The pages of the documentation: all are in the navigation, links and anchors hold, pictures are
current. `make docs` builds the site."""

from pathlib import Path

import pytest

from tools import build_docs, make_diagrams, make_error_docs

ROOT = Path(__file__).resolve().parents[2]
SITE = build_docs.site()
PAGES = {page: source for source, page in SITE.paths.items() if source.suffix == ".md"}


def test_navigation_names_every_page_once() -> None:
    """A new page gets its line in zensical.toml; those in docs/design are there by a pattern."""
    named = build_docs.nav_pages(build_docs.rendered_config(SITE.paths))
    assert len(named) == len(set(named))
    assert set(named) - {build_docs.DESIGN_INDEX} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings_that_exist(page: str) -> None:
    source = PAGES[page]
    broken = [
        f"{target}#{anchor}"
        for target, anchor in build_docs.links(source.read_text())
        if anchor and (file := (source.parent / target if target else source)).suffix == ".md"
        if anchor not in build_docs.anchors(file.read_text())
    ]
    assert broken == []


def test_links_are_written_for_the_site() -> None:
    readme = SITE.staged(ROOT / "README.md")
    assert "](client.md)" in readme
    assert "](design/index.md)" in readme
    assert SITE.staged(ROOT / "docs" / "client.md").count("](readme.md#durability)") == 1
    assert SITE.problems == []
    # A source file is named, not linked.
    assert "](examples/declarative)" not in SITE.staged(ROOT / "docs" / "spark-deployment.md")


def test_a_link_to_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("see [this](nowhere.md)\n```\n[code](stays.md)\n```\n")
    site = build_docs.Site({page: "page.md"})
    assert site.staged(page) == "see this\n```\n[code](stays.md)\n```\n"
    [problem] = site.problems
    assert "no such file: nowhere.md" in problem


def test_anchors_are_those_of_github() -> None:
    text = "# A `b.c`: d-e\n## Twice\n## Twice\n```\n# no heading\n```\n### [Link](x.md) & more\n"
    assert build_docs.anchors(text) == {"a-bc-d-e", "twice", "twice-1", "link--more"}


@pytest.mark.parametrize("name", make_diagrams.DIAGRAMS)
def test_pictures_are_current(name: str) -> None:
    picture = make_diagrams.DIAGRAMS[name]().svg()
    assert (make_diagrams.IMAGES / name).read_text() == picture, "run tools/make_diagrams.py"


def test_page_of_errors_is_current() -> None:
    assert make_error_docs.PAGE.read_text() == make_error_docs.render(), (
        "run tools/make_error_docs.py"
    )


def test_equal_sites_make_equal_archives(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<h1>headrace</h1>")
    (site / "script.js.map").write_text("{}")
    for name in ("one.zip", "two.zip"):
        build_docs.write_archive(site, tmp_path / name)
    first = (tmp_path / "one.zip").read_bytes()
    assert first == (tmp_path / "two.zip").read_bytes()
    assert b"script.js.map" not in first


def test_what_a_page_would_load_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="https://host/page">fine</a><script src="//cdn.host/x.js"></script>'
        '<link rel="stylesheet" href="https://fonts.host/y.css">'
    )
    assert len(build_docs.remote_resources(tmp_path)) == 2
