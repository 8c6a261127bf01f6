"""Metrics as text for Prometheus: its format 0.0.4, and OpenMetrics 1.0.

Lines come from a generator, so that a caller can stop after any of them and go on later: a page of
ten thousand partitions need not be made in one turn of an event loop.
"""

import math
from collections.abc import Iterator
from enum import Enum

from headrace.metrics.registry import Family, Histogram, Kind, Registry, Rows, Samples

_OTHERS = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_TOTAL = "_total"
# Lines that are made already, and only put together.
_LINES_PER_PIECE = 100


class ExpositionFormat(Enum):
    """A format of exposition, with its content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def accepted_format(accept: str) -> ExpositionFormat:
    """The format for an Accept header: OpenMetrics if it is asked for and not liked less."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for item in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    # Prometheus asks for OpenMetrics first, and most people who ask for nothing read the text.
    if 0 < weights["application/openmetrics-text"] >= weights["text/plain"]:
        return ExpositionFormat.OPEN_METRICS
    return ExpositionFormat.PROMETHEUS


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0


def exposition(registry: Registry, text_format: ExpositionFormat) -> Iterator[str]:
    """The page of a registry, in pieces of whole lines; metrics are read as it goes on."""
    is_open = text_format is ExpositionFormat.OPEN_METRICS
    for family, metrics, samplers in registry.collect():
        yield _head(family, is_open)
        for values, metric in metrics.items():
            if isinstance(metric, Histogram):
                yield from _histogram(family, values, metric)
            else:
                yield f"{family.name}{_labels(family.labels, values)} {number(metric.value)}\n"
        for read in samplers:
            yield from sample_lines(family, read())
    for families, rows in registry.collect_rows():
        yield from _rows(families, rows(), is_open)
    if is_open:
        yield "# EOF\n"


def sample_lines(family: Family, samples: Samples) -> Iterator[str]:
    """A line for each sample of a counter or gauge."""
    name, labels = family.name, family.labels
    for values, value in samples:
        yield f"{name}{_labels(labels, values)} {number(value)}\n"


def _rows(families: tuple[Family, ...], rows: Rows, is_open: bool) -> Iterator[str]:
    """The lines of several families; an empty piece for each row whose lines are kept for later."""
    lines: list[list[str]] = [[] for _ in families]
    columns = [(column.append, family.name) for column, family in zip(lines, families, strict=True)]
    for labels, values in rows:
        for (append, name), value in zip(columns, values, strict=True):
            append(f"{name}{labels} {value}\n")
        yield ""
    for family, column in zip(families, lines, strict=True):
        yield _head(family, is_open)
        for start in range(0, len(column), _LINES_PER_PIECE):
            yield "".join(column[start : start + _LINES_PER_PIECE])


def number(value: float) -> str:
    """A number as both formats write it."""
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value):
        return repr(float(value))
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"


def _head(family: Family, is_open: bool) -> str:
    name = family.name
    if is_open and family.kind is Kind.COUNTER:
        # There the family is named without the suffix, and its samples with it.
        name = name.removesuffix(_TOTAL)
    text = family.help.translate(_OTHERS if is_open else _HELP)
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind.value}\n"


def _histogram(family: Family, values: tuple[str, ...], histogram: Histogram) -> Iterator[str]:
    names = (*family.labels, "le")
    counts = tuple(histogram.counts)  # Copied, for it may go on counting before the last line.
    total = 0
    for bound, count in zip(histogram.bounds, counts, strict=False):
        total += count
        yield f"{family.name}_bucket{_labels(names, (*values, number(bound)))} {total}\n"
    total += counts[-1]
    labels = _labels(family.labels, values)
    yield (
        f"{family.name}_bucket{_labels(names, (*values, '+Inf'))} {total}\n"
        f"{family.name}_sum{labels} {number(histogram.sum)}\n"
        f"{family.name}_count{labels} {total}\n"
    )


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    parts = [
        f'{name}="{value}"' if value.isalnum() else f'{name}="{value.translate(_OTHERS)}"'
        for name, value in zip(names, values, strict=True)
    ]
    return "{" + ",".join(parts) + "}"
