"""Search expressions over Arrow columns: the rows of a batch that an expression selects.

Pure. Rule: conditions on whole keys, values, headers and numbers are decided by columns; those on
fields in JSON only after a search for bytes that every matching row must have, so that JSON is read
only in rows that can match.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import re2  # type: ignore[import-untyped]

from headrace.errors import ConfigError
from headrace.search.expressions import (
    NUMERIC_PARTS,
    Conjunction,
    ContainsText,
    Disjunction,
    Expression,
    FieldComparison,
    FieldRef,
    IsNull,
    MatchesPattern,
    Negation,
    RecordPart,
    Relation,
)
from headrace.search.record_predicate import Headers, SearchedRecord, compile_predicate

_COMPARE = {
    Relation.EQUAL: pc.equal,
    Relation.NOT_EQUAL: pc.not_equal,
    Relation.LESS: pc.less,
    Relation.LESS_OR_EQUAL: pc.less_equal,
    Relation.GREATER: pc.greater,
    Relation.GREATER_OR_EQUAL: pc.greater_equal,
}
# JSON writes a character as itself, unless it escapes it by a backslash.
_BACKSLASH = re2.escape("\\")
# A number behind a name in JSON.
_NUMBER = r"[ \t\r\n]*:[ \t\r\n]*(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
# A number in JSON has any precision, and is rounded: the bounds of a comparison count as within.
_COMPARE_ROUNDED = {
    Relation.EQUAL: pc.equal,
    Relation.LESS: pc.less_equal,
    Relation.LESS_OR_EQUAL: pc.less_equal,
    Relation.GREATER: pc.greater_equal,
    Relation.GREATER_OR_EQUAL: pc.greater_equal,
}


class RowMask(NamedTuple):
    """What columns say about rows: those that certainly match, and those that may."""

    certain: pa.BooleanArray
    possible: pa.BooleanArray


class SearchedColumns:
    """The columns of a record batch of `poll_arrow`, prepared for conditions as they ask."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.length: int = batch.num_rows
        self._numbers: dict[RecordPart, Any] = {}
        self._headers: tuple[Any, Any, Any] | None = None

    def numbers(self, part: RecordPart) -> Any:
        """The partitions, offsets or timestamps of the rows."""
        if part not in self._numbers:
            column = self.batch.column(part.value)
            self._numbers[part] = (
                column.view(pa.int64()) if part is RecordPart.TIMESTAMP else column
            )
        return self._numbers[part]

    def cells(self, part: RecordPart) -> Any:
        """The keys or values as they are."""
        return self.batch.column(part.value)

    def headers(self) -> tuple[Any, Any, Any]:
        """The names and values of all headers, and the rows that they belong to."""
        if self._headers is None:
            lists = self.batch.column("headers")
            entries = lists.flatten()
            self._headers = (
                entries.field("key"),
                entries.field("value"),
                pc.list_parent_indices(lists),
            )
        return self._headers

    def constant(self, value: bool) -> Any:
        """The same answer for every row."""
        return pa.repeat(pa.scalar(value), self.length)

    def rows_with(self, indices: Any) -> Any:
        """The mask of the rows whose numbers are given, repeated or not."""
        if len(indices) == 0:
            return self.constant(False)
        rows = pa.array(range(self.length), indices.type)
        return pc.is_in(rows, value_set=indices)


class ColumnFilter:
    """An expression that is ready to be applied to batches; ConfigError for a bad pattern."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self._predicate = compile_predicate(expression)
        self._parts = frozenset(_parts_of(expression))

    def matching_rows(self, batch: pa.RecordBatch) -> list[int]:
        """The rows of a batch that the expression selects, in order."""
        columns = SearchedColumns(batch)
        mask = _mask(self.expression, columns)
        if not _has_true(mask.possible):
            return []
        candidates: list[int] = pc.indices_nonzero(mask.possible).to_pylist()
        if mask.certain is mask.possible:
            return candidates
        certain = set(pc.indices_nonzero(mask.certain).to_pylist())
        uncertain = [row for row in candidates if row not in certain]
        matches = self._predicate
        found = {
            row
            for row, record in zip(
                uncertain, records_at(batch, uncertain, self._parts), strict=True
            )
            if matches(record)
        }
        return [row for row in candidates if row in certain or row in found]


def records_at(
    batch: pa.RecordBatch,
    rows: Sequence[int],
    parts: Collection[RecordPart] = frozenset(RecordPart),
) -> list[SearchedRecord]:
    """The records of some rows of a batch, with the given parts; the others are empty."""
    indices = None if len(rows) == batch.num_rows else pa.array(rows, pa.int32())

    def cells(part: RecordPart, missing: Any) -> Iterable[Any]:
        if part not in parts:
            return repeat(missing, len(rows))
        column = batch.column("headers" if part is RecordPart.HEADER else part.value)
        if indices is not None:
            column = column.take(indices)
        if part is RecordPart.HEADER:
            return _header_lists(column)
        found: list[Any] = (
            column.view(pa.int64()) if part is RecordPart.TIMESTAMP else column
        ).to_pylist()
        return found

    return list(
        map(
            SearchedRecord,
            cells(RecordPart.PARTITION, -1),
            cells(RecordPart.OFFSET, -1),
            cells(RecordPart.TIMESTAMP, -1),
            cells(RecordPart.KEY, None),
            cells(RecordPart.VALUE, None),
            cells(RecordPart.HEADER, ()),
        )
    )


def _header_lists(lists: Any) -> Sequence[Headers]:
    if len(lists.flatten()) == 0:
        return [()] * len(lists)
    return [
        [(header["key"], header["value"]) for header in headers] for headers in lists.to_pylist()
    ]


def _parts_of(expression: Expression) -> Iterator[RecordPart]:
    match expression:
        case Negation(operand):
            yield from _parts_of(operand)
        case Conjunction(operands) | Disjunction(operands):
            for operand in operands:
                yield from _parts_of(operand)
        case FieldComparison(field) | ContainsText(field) | MatchesPattern(field) | IsNull(field):
            yield field.part


def _has_true(mask: Any) -> bool:
    return bool(pc.any(mask).as_py())


def _mask(expression: Expression, columns: SearchedColumns) -> RowMask:
    match expression:
        case Negation(operand):
            mask = _mask(operand, columns)
            if mask.certain is mask.possible:
                return _decided(pc.invert(mask.possible))
            return RowMask(pc.invert(mask.possible), pc.invert(mask.certain))
        case Conjunction(operands):
            return _conjunction(operands, columns)
        case Disjunction(operands):
            return _disjunction(operands, columns)
        case FieldComparison(field) | ContainsText(field) | MatchesPattern(field) | IsNull(field):
            if field.path or _reads_json(expression):
                return _json_mask(expression, columns)
            return _decided(_condition_mask(expression, columns))


def _reads_json(condition: Expression) -> bool:
    """Whether a condition on a whole key, value or header compares it as a JSON value."""
    return (
        isinstance(condition, FieldComparison)
        and condition.field.part not in NUMERIC_PARTS
        and not isinstance(condition.literal, str)
    )


def _decided(mask: Any) -> RowMask:
    return RowMask(mask, mask)


def _conjunction(operands: Sequence[Expression], columns: SearchedColumns) -> RowMask:
    certain = possible = columns.constant(True)
    for operand in operands:
        mask = _mask(operand, columns)
        is_decided = certain is possible and mask.certain is mask.possible
        possible = pc.and_(possible, mask.possible)
        certain = possible if is_decided else pc.and_(certain, mask.certain)
        if not _has_true(possible):
            return _decided(possible)
    return RowMask(certain, possible)


def _disjunction(operands: Sequence[Expression], columns: SearchedColumns) -> RowMask:
    certain = possible = columns.constant(False)
    for operand in operands:
        mask = _mask(operand, columns)
        is_decided = certain is possible and mask.certain is mask.possible
        possible = pc.or_(possible, mask.possible)
        certain = possible if is_decided else pc.or_(certain, mask.certain)
    return RowMask(certain, possible)


def _condition_mask(condition: Expression, columns: SearchedColumns) -> Any:
    """The rows that a condition without JSON selects."""
    assert isinstance(condition, FieldComparison | ContainsText | MatchesPattern | IsNull)
    field = condition.field
    if field.part in NUMERIC_PARTS:
        return _cells_mask(condition, columns.numbers(field.part))
    if field.part is not RecordPart.HEADER:
        return _cells_mask(condition, columns.cells(field.part))
    return _header_mask(condition, columns)


def _header_mask(condition: Expression, columns: SearchedColumns) -> Any:
    assert isinstance(condition, FieldComparison | ContainsText | MatchesPattern | IsNull)
    names, values, rows = columns.headers()
    name = condition.field.header
    is_null = isinstance(condition, IsNull)
    if is_null:
        mask = values.is_valid() if name else pc.is_valid(rows)
    else:
        mask = _cells_mask(condition, values)
        if not name:
            mask = pc.or_(mask, _cells_mask(condition, names))
    if name:
        mask = pc.and_(mask, pc.equal(names, name))
    found = columns.rows_with(rows.filter(mask))
    return pc.invert(found) if is_null else found


def _cells_mask(condition: Expression, cells: Any) -> Any:
    """The cells that a condition selects; null cells are selected by `is null` alone."""
    match condition:
        case IsNull():
            return cells.is_null()
        case ContainsText(_, text, ignore_case):
            mask = contains_pattern(cells, re2.escape(text), ignore_case=ignore_case)
        case MatchesPattern(_, pattern, ignore_case):
            mask = contains_pattern(cells, pattern, ignore_case=ignore_case)
        case FieldComparison(_, relation, literal):
            wanted = literal.encode() if isinstance(literal, str) else literal
            mask = _COMPARE[relation](cells, pa.scalar(wanted, _wide(cells.type)))
        case _:
            raise AssertionError(condition)
    return mask.fill_null(False) if mask.null_count else mask


def _wide(kind: Any) -> Any:
    # A literal may be larger than any partition.
    return pa.int64() if pa.types.is_integer(kind) else kind


def contains_pattern(cells: Any, pattern: str, *, ignore_case: bool = False) -> Any:
    """The cells in which RE2 finds a pattern; cells without UTF-8 are searched too.

    Arrow reads `binary` as Latin-1. As `string` it takes the bytes for UTF-8, and RE2 does not
    depend on that: what is no UTF-8 matches nothing.
    """
    texts = cells if pa.types.is_string(cells.type) else cells.view(pa.string())
    try:
        return pc.match_substring_regex(texts, pattern, ignore_case=ignore_case)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"the pattern {pattern!r} is not valid: {error}") from None


def _json_mask(condition: Expression, columns: SearchedColumns) -> RowMask:
    """The rows whose JSON must be read to decide a condition."""
    assert isinstance(condition, FieldComparison | ContainsText | MatchesPattern | IsNull)
    field = condition.field
    if field.part is RecordPart.HEADER:
        names, values, rows = columns.headers()
        possible = pc.and_(_json_cells(condition, values), pc.equal(names, field.header))
        possible = columns.rows_with(rows.filter(possible))
    else:
        possible = _json_cells(condition, columns.cells(field.part))
    if isinstance(condition, IsNull):
        # Rows without the names of the path have no such field.
        return RowMask(pc.invert(possible), columns.constant(True))
    if not _has_true(possible):
        return _decided(possible)
    return RowMask(columns.constant(False), possible)


def _json_cells(condition: Expression, cells: Any) -> Any:
    """The cells that may fulfil a condition on their JSON, or have the field of `is null`."""
    mask = cells.is_valid()
    for alternatives in _needed_bytes(condition):
        # Each pattern alone: RE2 is several times faster with one text than with a choice.
        found: Any = None
        for pattern in alternatives:
            matched = contains_pattern(cells, pattern)
            found = matched if found is None else pc.or_(found, matched)
        mask = pc.and_(mask, found.fill_null(False))
        if not _has_true(mask):
            return mask
    match condition:
        case FieldComparison(FieldRef(path=(*_, str(name))), relation, int() | float() as literal):
            if relation in _COMPARE_ROUNDED and not isinstance(literal, bool):
                return pc.and_(mask, _number_mask(cells, name, relation, float(literal)))
    return mask


def _number_mask(cells: Any, name: str, relation: Relation, literal: float) -> Any:
    """The cells in which a number behind a name may fulfil a comparison.

    Where the name is there once, no other number can be meant. Where it is there more often, or a
    backslash may hide it, the JSON has to be read.
    """
    texts = cells.view(pa.string())
    quoted = re2.escape(f'"{name}"')
    found = pc.struct_field(pc.extract_regex(texts, quoted + _NUMBER), 0)
    fulfils = _COMPARE_ROUNDED[relation](pc.cast(found, pa.float64()), literal)
    is_unsure = pc.or_(
        pc.greater(pc.count_substring_regex(texts, quoted), 1), contains_pattern(cells, _BACKSLASH)
    )
    return pc.or_(fulfils.fill_null(False), is_unsure.fill_null(False))


def _needed_bytes(condition: Expression) -> list[tuple[str, ...]]:
    """Patterns that cells must contain to match: one of each tuple."""
    assert isinstance(condition, FieldComparison | ContainsText | MatchesPattern | IsNull)
    names = _path_names(condition.field)
    match condition:
        case ContainsText(_, text, False):
            return [(re2.escape(text), _BACKSLASH), *names]
        case FieldComparison(_, Relation.EQUAL, bool(literal)):
            return [*names, (str(literal).lower(),)]
        case FieldComparison(_, Relation.EQUAL, str(literal)):
            return [(re2.escape(literal), _BACKSLASH), *names]
    return names


def _path_names(field: FieldRef) -> list[tuple[str, ...]]:
    return [(re2.escape(f'"{step}"'), _BACKSLASH) for step in field.path if isinstance(step, str)]
