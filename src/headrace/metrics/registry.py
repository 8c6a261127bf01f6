"""Counters, gauges and histograms, and the registry that holds those of a program.

Rule: a metric is a number in memory and reads no clock: durations are arguments. Code that counts
gets its metrics from the registry once and keeps them; on a hot path it adds to `Counter.value`
without a call. Every metric is of a `Family`, which `headrace.metrics.catalog` declares.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

# Upper bounds of durations in seconds: ten microseconds to half a minute, three to a decade.
SECONDS = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip

NO_LABELS: Mapping[str, str] = MappingProxyType({})

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Values of labels, in the order of the family's names, each with the value of the metric."""


Rows: TypeAlias = Iterable[tuple[str, Sequence[float]]]
"""Labels as text, each with the values of several families that have these labels."""


class Kind(Enum):
    """What a metric is, by the names of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """A name under which there is a metric for each combination of values of its labels.

    `bounds` are those of a histogram. `kafka` is the MBean or client metric of Apache Kafka that
    shows the same, for who knows that.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    kafka: str = ""


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


class FamilyMetrics(NamedTuple):
    """The metrics of a family, by the values of its labels."""

    family: Family
    metrics: dict[tuple[str, ...], Metric]
    # Reads samples that nobody keeps metrics of: those of groups, say.
    samplers: list[Callable[[], Samples]]


class FamilyRows(NamedTuple):
    """Families that are read together, a row of values for each combination of labels."""

    families: tuple[Family, ...]
    read: Callable[[], Rows]


class Registry:
    """The metrics of one program, by family and labels.

    Invariant: one name has one family.
    """

    def __init__(self) -> None:
        self._families: dict[str, FamilyMetrics] = {}
        self._publishers: list[Callable[[], None]] = []
        self._rows: list[FamilyRows] = []

    def counter(self, family: Family, labels: Mapping[str, str] = NO_LABELS) -> Counter:
        """The counter of a family with labels, made if there is none yet."""
        assert family.kind is Kind.COUNTER, family
        return self._metric(family, labels, Counter, Counter)

    def gauge(
        self, family: Family, read: Callable[[], float], labels: Mapping[str, str] = NO_LABELS
    ) -> Gauge:
        """The gauge of a family with labels, made with `read` if there is none yet."""
        assert family.kind is Kind.GAUGE, family
        return self._metric(family, labels, Gauge, lambda: Gauge(read))

    def histogram(self, family: Family, labels: Mapping[str, str] = NO_LABELS) -> Histogram:
        """The histogram of a family with labels, made if there is none yet."""
        assert family.kind is Kind.HISTOGRAM, family
        return self._metric(family, labels, Histogram, lambda: Histogram(family.bounds))

    def samples(self, family: Family, read: Callable[[], Samples]) -> None:
        """Have `read` called for samples of a counter or gauge whenever metrics are collected.

        It may be a generator, which is read in parts: what it iterates over must not change
        between them. It yields no combination of labels twice.
        """
        assert family.kind is not Kind.HISTOGRAM, family
        self._entry(family).samplers.append(read)

    def rows(self, families: Sequence[Family], read: Callable[[], Rows]) -> None:
        """Have `read` called for values of several families, which are shown after all others.

        For what there are many thousands of: labels are made to text once for a whole row.
        """
        for family in families:
            assert family.kind is not Kind.HISTOGRAM and family.name not in self._families, family
        self._rows.append(FamilyRows(tuple(families), read))

    def collect_rows(self) -> tuple[FamilyRows, ...]:
        """The families that are read in rows."""
        return tuple(self._rows)

    def before_collecting(self, publish: Callable[[], None]) -> None:
        """Have `publish` called whenever metrics are collected, to write what it counts."""
        self._publishers.append(publish)

    def collect(self) -> Iterator[FamilyMetrics]:
        """All metrics by family, in the order in which the families were first used."""
        for publish in self._publishers:
            publish()
        for entry in tuple(self._families.values()):
            yield FamilyMetrics(entry.family, dict(entry.metrics), list(entry.samplers))

    def _entry(self, family: Family) -> FamilyMetrics:
        entry = self._families.get(family.name)
        if entry is None:
            entry = self._families[family.name] = FamilyMetrics(family, {}, [])
        assert entry.family is family, family.name
        return entry

    def _metric(
        self,
        family: Family,
        labels: Mapping[str, str],
        kind: type[AnyMetric],
        make: Callable[[], AnyMetric],
    ) -> AnyMetric:
        entry = self._entry(family)
        assert labels.keys() == set(family.labels), (family, labels)
        key = tuple(labels[name] for name in family.labels)
        metric = entry.metrics.get(key)
        if metric is None:
            metric = entry.metrics[key] = make()
        assert isinstance(metric, kind), family
        return metric
