"""Counters, gauges and histograms that one thread writes and reads: no lock, a tenth of the cost.

Everything that is counted is counted on the event loop's thread, and so is `/metrics` made. prometheus_client's own
would take a lock each time, which on a call that takes 60 µs is felt.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Number:
    """A counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1) -> None:
        self.value += by


class Histogram:
    """How often a value was within each of its buckets, and the sum of all values."""

    __slots__ = ("_buckets", "counts", "total")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """By upper bound: how many values were not above it."""
        sum_of = 0
        for bound, count in zip((*self._buckets, float("inf")), self.counts, strict=True):
            sum_of += count
            yield "+Inf" if bound == float("inf") else repr(float(bound)), sum_of


class Family:
    """Numbers of one name, told apart by their labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float] | None = None) -> None:
        self.name, self.text, self.labels, self.buckets = name, text, tuple(labels), buckets
        self.children: dict[tuple[str, ...], Number | Histogram] = {}
        if not labels:
            self.child(())  # what has not happened yet is 0, and not missing

    def child(self, values: tuple[str, ...]) -> Number | Histogram:
        """The one with these labels, in their order."""
        found = self.children.get(values)
        if found is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has the labels {self.labels}, not {len(values)} of them")
            found = self.children[values] = Number() if self.buckets is None else Histogram(self.buckets)
        return found

    def told(self) -> Metric:
        """As prometheus_client writes it."""
        family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
        if self.buckets is not None:
            family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        elif self.name.endswith("_total"):
            family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        else:
            family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for values, child in self.children.items():
            if isinstance(child, Histogram):
                assert isinstance(family, HistogramMetricFamily)
                family.add_metric(values, list(child.cumulative()), child.total)
            else:
                assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
                family.add_metric(values, child.value)
        return family


class Numbers(Collector):
    """Families, as prometheus_client collects them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield family.told()
