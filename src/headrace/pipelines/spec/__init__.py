"""The specification of a pipeline: its parts as values, from YAML or Python."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipelines.spec.model import Pipeline

__all__ = ["load"]

YAML_SUFFIXES = (".yaml", ".yml")


def load(path: Path | str) -> "Pipeline":
    """The checked pipeline that a file declares, in YAML or Python by its suffix.

    Raises SpecError, with a line in the text for each problem.
    """
    # Imported here so that using the model does not import PyYAML and the table of keys.
    from headrace.pipelines.spec.checks import check  # noqa: PLC0415

    path = Path(path)
    pipeline = _read(path)
    check(pipeline)
    return pipeline


def _read(path: Path) -> "Pipeline":
    from headrace.pipelines.spec.model import SpecError  # noqa: PLC0415

    if path.suffix in YAML_SUFFIXES:
        from headrace.pipelines.spec import yaml_file  # noqa: PLC0415

        return yaml_file.load(path)
    if path.suffix == ".py":
        from headrace.pipelines.spec import builder as python_file  # noqa: PLC0415

        return python_file.load(path)
    raise SpecError(None, f"{path}: a pipeline is a .yaml, .yml or .py file")
