"""A pipeline from a Python file, which declares it with the builder."""

from pathlib import Path

from headrace.pipelines.spec.builder import Builder
from headrace.pipelines.spec.keys import listed
from headrace.pipelines.spec.model import Pipeline, Place, SpecError
from headrace.pipelines.spec.modules import import_file, shown_path


def load(path: Path | str) -> Pipeline:
    """The one pipeline that a file declares, which is imported for it.

    Raises SpecError if there is none, if there are several, or if the import fails.
    """
    path = Path(path)
    module = import_file(path)
    builders = {id(one): one for one in vars(module).values() if isinstance(one, Builder)}
    if len(builders) == 1:
        [builder] = builders.values()
        return builder.build()
    place = Place(shown_path(path), 1)
    if not builders:
        text = "no pipeline here: give a variable of the module headrace.pipelines.pipeline(...)"
        raise SpecError(place, text)
    names = listed(f"{one.name} (line {one.place.line})" for one in builders.values())
    raise SpecError(place, f"several pipelines here: {names}; keep one in a file")
