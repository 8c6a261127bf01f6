"""Counters, gauges and histograms, and the registry that holds those of a program.

Rule: a metric is a number in memory and reads no clock: durations are arguments. Code that counts
gets its metrics from the registry once and keeps them; on a hot path it adds to `Counter.value`
without a call.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

# Upper bounds of durations in seconds: ten microseconds to half a minute, two to a decade.
SECONDS = (
    0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0,
)  # fmt: skip

Labels: TypeAlias = tuple[tuple[str, str], ...]
NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Gauge:
    """A number that goes up and down, computed by `read` whenever metrics are collected."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    @property
    def value(self) -> float:
        return self._read()


class Histogram:
    """Counts of observed values by range, and the sum of the values.

    `counts[i]` is the number of values above `bounds[i - 1]` and up to `bounds[i]`; values above
    the last bound are counted in `counts[-1]`.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


Metric: TypeAlias = Counter | Gauge | Histogram
AnyMetric = TypeVar("AnyMetric", Counter, Gauge, Histogram)


class MetricFamily(NamedTuple):
    """The metrics of one name, with their help text: one metric per combination of labels."""

    name: str
    help: str
    metrics: dict[Labels, Metric]


class Registry:
    """The metrics of one program, by name and labels.

    Invariant: metrics of one name are of one kind, with one help text and the same label names.
    """

    def __init__(self) -> None:
        self._families: dict[str, MetricFamily] = {}

    def counter(self, name: str, text: str, labels: Mapping[str, str] = NO_LABELS) -> Counter:
        """The counter with a name and labels, made if there is none yet."""
        return self._metric(name, text, labels, Counter, Counter)

    def gauge(
        self,
        name: str,
        text: str,
        read: Callable[[], float],
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Gauge:
        """The gauge with a name and labels, made with `read` if there is none yet."""
        return self._metric(name, text, labels, Gauge, lambda: Gauge(read))

    def histogram(
        self,
        name: str,
        text: str,
        bounds: Sequence[float] = SECONDS,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Histogram:
        """The histogram with a name and labels, made if there is none yet."""
        return self._metric(name, text, labels, Histogram, lambda: Histogram(bounds))

    def collect(self) -> Iterator[MetricFamily]:
        """All metrics by name, in the order in which the names were first used."""
        for family in self._families.values():
            yield family._replace(metrics=dict(family.metrics))

    def _metric(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        kind: type[AnyMetric],
        make: Callable[[], AnyMetric],
    ) -> AnyMetric:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = MetricFamily(name, text, {})
        key = tuple(sorted(labels.items()))
        known = next(iter(family.metrics), key)
        assert [label for label, _ in known] == [label for label, _ in key], (name, known, key)
        assert family.help == text, name
        metric = family.metrics.get(key)
        if metric is None:
            metric = family.metrics[key] = make()
        assert isinstance(metric, kind), name
        return metric
