"""The page of metrics."""

from tools import make_metrics_docs


def test_the_page_of_metrics_is_what_the_code_declares() -> None:
    assert make_metrics_docs.PAGE.read_text() == make_metrics_docs.render(), (
        "run tools/make_metrics_docs.py"
    )
