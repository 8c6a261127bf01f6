"""A pipeline from a YAML file."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from headrace.pipelines.spec.keys import Context
from headrace.pipelines.spec.model import Pipeline, Place, SpecError, raise_problems
from headrace.pipelines.spec.nodes import Node, Table
from headrace.pipelines.spec.table import PIPELINE, default_checkpoint
from headrace.pipelines.spec.yaml_nodes import CHARACTERS_MAX, read_nodes

# Set for every file, for values that are neither paths nor relative to the file by themselves.
DIRECTORY_VARIABLE = "PIPELINE_DIR"


def load(path: Path | str, variables: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline that a file declares; `variables` instead of the environment's, if given.

    Raises SpecError, with a line in the text for each thing that is wrong. References between the
    parts are not looked at: that is `checks.check`.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(CHARACTERS_MAX + 1)
    except OSError as error:
        raise SpecError(None, f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(Place(str(path), 1), "not UTF-8 text") from None
    return parse(text, path, os.environ if variables is None else variables)


def parse(text: str, path: Path, variables: Mapping[str, str]) -> Pipeline:
    """The pipeline of a text that is, or could be, in the file at `path`."""
    directory = path.parent.absolute()
    context = Context(str(path), directory)
    root = read_nodes(text, context, {DIRECTORY_VARIABLE: str(directory), **variables})
    pipeline = None
    if root is not None:
        pipeline = PIPELINE.read(_without_extensions(root), "the pipeline", context)
    raise_problems(sorted(context.problems, key=lambda one: one.place.line if one.place else 0))
    assert isinstance(pipeline, Pipeline)
    return dataclasses.replace(
        pipeline,
        directory=directory,
        checkpoint=pipeline.checkpoint or default_checkpoint(pipeline.name, directory),
    )


def _without_extensions(root: Node) -> Node:
    if not isinstance(root, Table):
        return root
    return Table(tuple(one for one in root.entries if not one.key.startswith("x-")), root.line)
