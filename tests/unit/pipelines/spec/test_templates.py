"""The pipelines to start from: each is right as it is written."""

from pathlib import Path

import pytest

from headrace.pipelines.spec import load, templates
from headrace.pipelines.spec.dependencies import unused
from headrace.pipelines.spec.model import FileSink, SpecError, TopicSink


@pytest.mark.parametrize("template", templates.TEMPLATES)
def test_every_template_passes_the_checks(template: str, tmp_path: Path) -> None:
    [path] = templates.write(tmp_path / "new" / "place", template)
    pipeline = load(path)
    assert pipeline.broker == {"bootstrap.servers": "localhost:9092"}
    assert pipeline.dead_letters is not None
    assert unused(pipeline) == []


@pytest.fixture(autouse=True)
def _no_broker_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)


def test_templates_take_the_broker_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "other:9092")
    for template in templates.TEMPLATES:
        [path] = templates.write(tmp_path / template, template)
        assert load(path).broker == {"bootstrap.servers": "other:9092"}


def test_templates_are_what_they_are_called(tmp_path: Path) -> None:
    [orders] = templates.write(tmp_path / "a")
    [lake] = templates.write(tmp_path / "b", "lake")
    [python] = templates.write(tmp_path / "c", "python")
    assert [orders.name, lake.name, python.name] == [
        "pipeline.yaml",
        "pipeline.yaml",
        "pipeline.py",
    ]
    assert isinstance(load(orders).sinks[0].target, TopicSink)
    assert isinstance(load(lake).sinks[0].target, FileSink)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    [path] = templates.write(tmp_path)
    path.write_text("mine")
    with pytest.raises(SpecError, match="is there already and is not overwritten"):
        templates.write(tmp_path, "lake")
    assert path.read_text() == "mine"


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no template 'order'; did you mean 'orders'"):
        templates.write(tmp_path, "order")
    with pytest.raises(
        SpecError, match="there is no template 'zzz'; there are orders, lake, python"
    ):
        templates.write(tmp_path, "zzz")
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written: Not a directory"):
        templates.write(tmp_path / "file" / "below")
