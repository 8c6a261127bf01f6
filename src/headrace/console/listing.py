"""Lists of pages: filtered, sorted and cut into pages here, so that a browser gets fifty rows.

Rule: pure. The query of a request (`q`, `sort`, `page`) says what is wanted; unknown values of a
column come last in either direction.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from starlette.datastructures import QueryParams

Row = TypeVar("Row")
SortValue: TypeAlias = str | float | None

ROWS_MAX = 50
QUERY_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class SortKey(Generic[Row]):
    """A column that a list can be sorted by; numbers are sorted from the largest at first."""

    value: Callable[[Row], SortValue]
    descends: bool = False


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Row]):
    """The rows of one page of a list, and what is needed to ask for the others."""

    rows: list[Row]
    matching: int
    total: int
    page: int
    pages: int
    sort: str
    descending: bool
    wanted: str
    path: str
    # Other values of the query, which stay as they are.
    kept: Mapping[str, str]
    descends: Mapping[str, bool]

    def query(self, **changes: Any) -> dict[str, Any]:
        """The query of a link to this list with changes."""
        sign = "-" if self.descending else ""
        now = {**self.kept, "q": self.wanted, "sort": f"{sign}{self.sort}", "page": self.page}
        return {**now, **changes}

    def sorted_by(self, column: str) -> dict[str, Any]:
        """The query of a link that sorts by a column, or the other way round if it is that."""
        descends = self.descends[column]
        if column == self.sort:
            descends = not self.descending
        return self.query(sort=f"{'-' if descends else ''}{column}", page=None)

    def direction(self, column: str) -> str:
        """How the list is sorted by a column, as `aria-sort` says it."""
        if column != self.sort:
            return "none"
        return "descending" if self.descending else "ascending"

    @property
    def first(self) -> int:
        """The number of the first row shown, from 1; 0 without any."""
        return (self.page - 1) * ROWS_MAX + 1 if self.rows else 0

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def listing(
    query: QueryParams,
    path: str,
    rows: Iterable[Row],
    columns: Mapping[str, SortKey[Row]],
    *,
    text: Callable[[Row], str],
    kept: Iterable[str] = (),
    sort: str | None = None,
) -> ListPage[Row]:
    """The rows that a request wants to see. `text` is searched; the first column is the default."""
    everything = list(rows)
    wanted = query.get("q", "").strip()[:QUERY_CHARS_MAX]
    found = everything
    if wanted:
        words = wanted.casefold().split()
        found = [row for row in everything if all(word in text(row).casefold() for word in words)]
    default = sort or next(iter(columns))
    given = query.get("sort", "")
    column = given.removeprefix("-")
    descending = given.startswith("-")
    if column not in columns:
        column, descending = default, columns[default].descends
    ordered = _sorted(found, columns[column].value, descending=descending)
    pages = max(-(-len(ordered) // ROWS_MAX), 1)
    number = query.get("page", "")
    page = min(max(int(number) if number.isdecimal() and len(number) < 9 else 1, 1), pages)
    start = (page - 1) * ROWS_MAX
    return ListPage(
        rows=ordered[start : start + ROWS_MAX],
        matching=len(found),
        total=len(everything),
        page=page,
        pages=pages,
        sort=column,
        descending=descending,
        wanted=wanted,
        path=path,
        kept={name: query[name] for name in kept if query.get(name)},
        descends={name: key.descends for name, key in columns.items()},
    )


def _sorted(rows: list[Row], value: Callable[[Row], SortValue], *, descending: bool) -> list[Row]:
    known: list[tuple[Any, Row]] = []
    unknown: list[Row] = []
    for row in rows:
        key = value(row)
        if key is None:
            unknown.append(row)
        else:
            known.append((key.casefold() if isinstance(key, str) else key, row))
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in known] + unknown
