"""Templates of pipelines: each is a text file beside this module."""

from importlib.resources import files
from pathlib import Path

from headrace.options import nearest
from headrace.pipelines.spec.model import SpecError
from headrace.pipelines.spec.sections import listed

# The purpose of each template.
TEMPLATES = {
    "orders": "orders of a topic, counted by region and minute, to another topic",
    "lake": "records of a topic, into Parquet files by day",
    "python": "a pipeline declared in Python, to be filled in",
}
# The file of each template and its name when written. The Python one is stored as text: it is no
# module of headrace.
_FILES = {
    "orders": ("orders.yaml", "pipeline.yaml"),
    "lake": ("lake.yaml", "pipeline.yaml"),
    "python": ("python.py.txt", "pipeline.py"),
}


def write(directory: Path | str, template: str = "orders") -> list[Path]:
    """Write a template's files into a directory, made if missing; returns their paths.

    Raises SpecError for an unknown template, and rather than overwrite a file.
    """
    if template not in TEMPLATES:
        near = nearest(template, TEMPLATES)
        hint = f"did you mean {near!r}?" if near else f"there are {listed(TEMPLATES)}"
        raise SpecError(None, f"there is no template {template!r}; {hint}")
    stored, name = _FILES[template]
    path = Path(directory) / name
    text = files(__name__).joinpath(stored).read_text(encoding="utf-8")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        remedy = "give another directory, or remove it first"
        raise SpecError(None, f"{path} is there already and is not overwritten; {remedy}") from None
    except OSError as error:
        raise SpecError(None, f"{path} cannot be written: {error.strerror}") from None
    return [path]
