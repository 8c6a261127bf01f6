"""What checks are made of: each yields what is wrong with some values, under a title."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.pipelines.spec.columns import source_columns
from headrace.pipelines.spec.keys import listed, nearest
from headrace.pipelines.spec.model import FormatSource, Place, SpecError, Step, TopicSource
from headrace.pipelines.spec.order import Part

T = TypeVar("T")
Problems = Iterator[SpecError]

TOPIC_LENGTH_MAX = 249
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}")


def title_of(part: Part) -> str:
    """A source or step as messages name it."""
    return f"{'step' if isinstance(part, Step) else 'source'} {part.name!r}"


def told(title: str, place: Place | None, act: Callable[[T], object], value: T) -> Problems:
    """What an act refuses to take, as a problem of the part of that title."""
    try:
        act(value)
    except (HeadraceError, ValueError) as error:
        yield SpecError(place, f"{title}: {error}")


def topic_problems(topics: Sequence[str], title: str, place: Place | None) -> Problems:
    """Names that no topic can have."""
    for topic in topics:
        if topic in (".", "..") or not _TOPIC.fullmatch(topic):
            text = f"{topic!r} is not a topic name: use letters of a-z, digits, '.', '_' and '-'"
            yield SpecError(place, f"{title}: {text}, and at most {TOPIC_LENGTH_MAX} of them")


def list_problems(names: Sequence[str], title: str, place: Place | None) -> Problems:
    """Names that are there twice."""
    doubled = {name for name in names if names.count(name) > 1}
    for name in sorted(doubled):
        yield SpecError(place, f"{title} has {name!r} twice")


def column_problems(
    part: Part | None, names: Sequence[str], title: str, place: Place | None = None
) -> Problems:
    """Columns that a source with a declared schema does not have; of steps only Spark can tell."""
    if not isinstance(part, TopicSource | FormatSource):
        return
    columns = source_columns(part)
    if columns is None:
        return
    known = {name.lower() for name in columns}
    for name in names:
        if name.lower() not in known:
            near = nearest(name, columns)
            hint = f"; did you mean {near!r}?" if near else f", which has {listed(columns)}"
            text = f"{title}: there is no column {name!r} in source {part.name!r}{hint}"
            yield SpecError(place or part.place, text)
