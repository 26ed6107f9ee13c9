"""`/metrics`: a runtime's numbers for Prometheus. `Runtime(metrics=Prometheus())` fills it.

Labels are names of tools, kinds, states, statuses, models and route templates, which a configuration bounds. No id,
conversation, key or path is ever a label (K5); HTTP requests count by their route template. Each object has its own
registry of collectors.

`snapshot` returns percentiles of the last thousand waits, for the dashboard.

Everything is counted and rendered on the event loop's thread, so our counters need no lock. prometheus_client's own
take one each time: ten times the cost, which is noticeable on a call of 60 µs.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.errors import KeepholdError
from keephold.handles.observing import CREATED, SECONDS, SETTLED, WAIT_SECONDS, WAITS, Asking
from keephold.handles.registry import Registry
from keephold.handles.state import Ok, Running, Started, Stopped
from keephold.store.base import (
    Attempted,
    Changed,
    Claimed,
    Delivered,
    Done,
    Failed,
    Journaled,
    Notified,
    Op,
    Parked,
    Registered,
    Resolved,
    Responded,
    SupportsCounting,
    browsable,
)
from keephold.store.rows import Kind, status_of
from keephold.text import to_json, to_utf8

INSTANT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Buckets in seconds, for operations of the runtime."""
LONG = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
"""Buckets in seconds, for tools and users."""
_RECENT = 1000
_STATES = ("pending", "running", "waiting", "stopped", "parked")
COUNTERS: dict[str, tuple[str, ...]] = {
    CREATED: ("Handles spawned", "type"),
    SETTLED: ("Spawned handles that have stopped", "type", "status"),
    "keephold_calls_total": ("Calls that have stopped, spawned or not", "tool", "status"),
    WAITS: ("Waits for handles that have ended", "tool", "status"),
    "keephold_output_bytes_total": ("Bytes that tools printed and returned", "tool"),
    "keephold_shown_bytes_total": ("Bytes of output and replies that models were given",),
    "keephold_attempts_total": ("Retries planned after a failure",),
    "keephold_recovered_total": ("Calls taken over from dead processes",),
    "keephold_parked_total": ("Calls that were parked until an outside result",),
    "keephold_resolved_total": ("Attempts to complete a key", "status"),
    "keephold_steps_total": ("Journal entries written", "kind"),
    "keephold_notifications_queued_total": ("Notifications queued for conversations", "level"),
    "keephold_notifications_delivered_total": ("Notifications delivered to a model", "level"),
    "keephold_store_commits_total": ("Commits written",),
    "keephold_store_refused_total": ("Commits refused", "code"),
    "keephold_http_requests_total": ("HTTP requests", "method", "route", "status"),
    "keephold_model_requests_total": ("Requests answered by a model", "model"),
    "keephold_model_tokens_total": ("Tokens of these requests", "model", "direction"),
    "keephold_model_cost_dollars_total": ("Cost of these requests, where a price is known", "model"),
}
GAUGES: dict[str, tuple[str, ...]] = {
    "keephold_handles": (
        "Spawned handles in the store; `waiting`: a question is open, `parked`: until an outside result",
        "state",
    ),
    "keephold_open_requests": ("Open requests to the user: permissions, questions, results, passwords",),
    "keephold_event_streams": ("Open streams of events and output", "kind"),
    "keephold_disk_bytes": ("Bytes that stored output and results take, as last measured",),
    "keephold_disk_limit_bytes": ("The limit of these bytes",),
    "keephold_store_last_event": ("Number of the newest event in the store",),
    "keephold_store_transactions": ("Transactions of this process; commits per transaction is the group size",),
}
"""By name: help text and labels."""
HISTOGRAMS: dict[str, tuple[Any, ...]] = {
    SECONDS: ("From spawn to stop", LONG, "type", "status"),
    WAIT_SECONDS: ("Duration of waits for handles", LONG, "tool", "status"),
    "keephold_wakeup_seconds": ("From a visible stop until its waiters resume", INSTANT),
    "keephold_queue_seconds": ("From registration to running", LONG),
    "keephold_asked_seconds": ("Time until a question, a permission or a result was answered", LONG, "what"),
    "keephold_store_commit_seconds": ("From a commit until it is visible", INSTANT),
    "keephold_http_request_seconds": ("From a request to the start of its response", INSTANT, "method", "route"),
}
"""By name: help text, buckets and labels."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
NO_ROUTE = "none"
"""The route of requests that match none, or were refused before routing."""


class Written:
    """Counts committed operations. A runtime without metrics does not run this code."""

    def __init__(self, metrics: "Prometheus") -> None:
        self._child = metrics.child
        self._commits = metrics.child("keephold_store_commits_total")
        self._seconds = metrics.child("keephold_store_commit_seconds")
        self._queue = metrics.child("keephold_queue_seconds")
        self._attempts = metrics.child("keephold_attempts_total")
        self._recovered = metrics.child("keephold_recovered_total")
        self._parked = metrics.child("keephold_parked_total")
        self._of: dict[type, Callable[[Any, Any], None]] = {
            Registered: self._registered,
            Changed: self._changed,
            Attempted: self._attempted,
            Claimed: self._claimed,
            Parked: self._parks,
            Resolved: self._resolved,
            Journaled: self._journaled,
            Notified: self._notified,
            Delivered: self._delivered,
            Responded: self._delivered,
        }

    def observe(self, ops: Sequence[Op], done: Done, failed: Failed) -> tuple[Sequence[Op], Done, Failed]:
        """Count a commit when it is written or refused."""
        if not ops:  # a barrier
            return ops, done, failed
        return ops, partial(self._done, time.perf_counter(), ops, done), partial(self._refused, failed)

    def _done(self, began: float, ops: Sequence[Op], done: Done, results: Sequence[Any]) -> None:
        self._seconds.observe(time.perf_counter() - began)
        self._commits.inc()
        for op, result in zip(ops, results, strict=False):
            count = self._of.get(type(op))
            if count is not None:
                count(op, result)
        done(results)

    def _refused(self, failed: Failed, error: Exception) -> None:
        self._child("keephold_store_refused_total", getattr(error, "code", "error")).inc()
        failed(error)

    def _registered(self, op: Registered, result: Any) -> None:
        if isinstance(op.record.state, Running):
            self._queue.observe(op.record.state.started - op.record.state.created)

    def _changed(self, op: Changed, result: Any) -> None:
        if type(op.event) is Started and isinstance(op.state, Running):
            self._queue.observe(op.state.started - op.state.created)
        if op.notice is not None:
            self._child("keephold_notifications_queued_total", op.notice.level).inc()

    def _attempted(self, op: Attempted, result: Any) -> None:
        if op.next_at is not None:
            self._attempts.inc()

    def _claimed(self, op: Claimed, result: Any) -> None:
        if result is not None:
            self._recovered.inc()

    def _parks(self, op: Parked, result: Any) -> None:
        if not isinstance(result, Stopped):
            self._parked.inc()

    def _resolved(self, op: Resolved, result: Any) -> None:
        self._child("keephold_resolved_total", result.status).inc()

    def _journaled(self, op: Journaled, result: Any) -> None:
        self._child("keephold_steps_total", op.kind).inc()

    def _notified(self, op: Notified, result: Any) -> None:
        self._child("keephold_notifications_queued_total", op.level).inc()

    def _delivered(self, op: Delivered | Responded, result: Any) -> None:
        for notification in result or ():
            self._child("keephold_notifications_delivered_total", notification.level).inc()


class Number:
    """A counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1) -> None:
        self.value += by


class Histogram:
    """A histogram: the number of values in each bucket, and their sum."""

    __slots__ = ("_buckets", "counts", "total")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Yield each upper bound and the number of values up to it."""
        sum_of = 0
        for bound, count in zip((*self._buckets, float("inf")), self.counts, strict=True):
            sum_of += count
            yield "+Inf" if bound == float("inf") else repr(float(bound)), sum_of


class Family:
    """The numbers of one name, one for each combination of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float] | None = None) -> None:
        self.name, self.text, self.labels, self.buckets = name, text, tuple(labels), buckets
        self.children: dict[tuple[str, ...], Number | Histogram] = {}
        if not labels:
            self.child(())  # shown as 0 before anything is counted

    def child(self, values: tuple[str, ...]) -> Number | Histogram:
        """Return the number with these labels, in their order."""
        found = self.children.get(values)
        if found is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has the labels {self.labels}, not {len(values)} of them")
            found = self.children[values] = Number() if self.buckets is None else Histogram(self.buckets)
        return found

    def metric(self) -> Metric:
        """Return the family for prometheus_client."""
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
    """Families as a collector of prometheus_client."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield family.metric()


class Prometheus:
    """The metrics of one runtime."""

    def __init__(self) -> None:
        families = [Family(name, text, labels) for name, (text, *labels) in (*COUNTERS.items(), *GAUGES.items())]
        families += [Family(name, text, labels, within) for name, (text, within, *labels) in HISTOGRAMS.items()]
        self._families = {family.name: family for family in families}
        self._children: dict[tuple[str, ...], Any] = {}
        registry = self.registry = CollectorRegistry()
        registry.register(Numbers(families))
        ProcessCollector(registry=registry)
        self._of: Registry | None = None
        self.requests: Callable[[], Awaitable[int]] | None = None
        """Counts the open requests to the user."""
        self._waited: deque[float] = deque(maxlen=_RECENT)
        self._woken: deque[float] = deque(maxlen=_RECENT)

    # Recording

    def count(self, name: str, **labels: str) -> None:
        self.child(name, *labels.values()).inc()

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.child(name, *labels.values()).observe(value)

    def child(self, *name_and_labels: str) -> Any:
        """Return the counter, gauge or histogram of that name and these labels, in their order."""
        found = self._children.get(name_and_labels)
        if found is None:
            name, *values = name_and_labels
            found = self._children[name_and_labels] = self._families[name].child(tuple(values))
        return found

    def attach(self, registry: Registry) -> None:
        """Count what the runtime of that registry does."""
        self._of = registry
        registry.meters.append(self)
        registry.observe_commits(Written(self).observe)

    def ended(self, tool: str, kind: Kind, state: Stopped) -> None:
        self.child("keephold_calls_total", tool, status_of(state)).inc()
        if isinstance(state.outcome, Ok):
            self.printed(tool, _size(state.outcome.value))

    def printed(self, tool: str, size: int) -> None:
        self.child("keephold_output_bytes_total", tool).inc(size)

    def shown(self, size: int) -> None:
        self.child("keephold_shown_bytes_total").inc(size)

    def waited(self, tool: str, status: str, secs: float) -> None:
        self._waited.append(secs)
        self.child(WAITS, tool, status).inc()
        self.child(WAIT_SECONDS, tool, status).observe(secs)

    def woken(self, secs: float) -> None:
        self._woken.append(secs)
        self.child("keephold_wakeup_seconds").observe(secs)

    def asked(self, what: Asking, secs: float) -> None:
        self.child("keephold_asked_seconds", what).observe(secs)

    def spent(self, model: str, *, input_tokens: int, output_tokens: int, cost: float | None) -> None:
        self.child("keephold_model_requests_total", model).inc()
        self.child("keephold_model_tokens_total", model, "input").inc(input_tokens)
        self.child("keephold_model_tokens_total", model, "output").inc(output_tokens)
        if cost is not None:
            self.child("keephold_model_cost_dollars_total", model).inc(cost)

    @contextmanager
    def stream(self, kind: str = "events") -> Iterator[None]:
        """Count a stream of that kind (`events`, `output`, …) as open within the block."""
        gauge = self.child("keephold_event_streams", kind)
        gauge.inc()
        try:
            yield
        finally:
            gauge.inc(-1)

    # Reading

    def snapshot(self) -> dict[str, Any]:
        """Return this process's numbers since its start, for `stats`."""
        return {
            "calls": self._total("keephold_calls_total"),
            "bytes_produced": self._total("keephold_output_bytes_total"),
            "bytes_shown": self._total("keephold_shown_bytes_total"),
            "waits": self._total(WAITS),
            "wait_seconds": _percentiles(self._waited, 1),
            "wakeup_ms": _percentiles(self._woken, 1000),
            "commits": self._total("keephold_store_commits_total"),
            "streams": self._total("keephold_event_streams"),
        }

    def _total(self, name: str) -> int:
        """Return the sum of a counter or a gauge over its labels."""
        return int(sum(each.value for each in self._families[name].children.values() if isinstance(each, Number)))

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text of `/metrics` in an accepted format, and its media type."""
        await self._read_store()
        encode, media = choose_encoder(accept)
        return encode(self.registry), media

    async def page(self, request: Request) -> Response:
        """`GET /metrics`."""
        body, media = await self.render(request.headers.get("accept", ""))
        return Response(body, media_type=None, headers={"content-type": media})

    async def _read_store(self) -> None:
        """Read the gauges that would cost more to count."""
        store = browsable(self._of.store) if self._of is not None else None
        if store is None or self._of is None or (store.durable and self._of.closing):
            return
        disk = self._of.spool.disk
        self.child("keephold_disk_bytes").value = disk.used
        self.child("keephold_disk_limit_bytes").value = disk.limit or 0
        self.child("keephold_store_transactions").value = store.commits if isinstance(store, SupportsCounting) else 0
        try:
            if self.requests is not None:
                self.child("keephold_open_requests").value = await self.requests()
            counts = await store.count()
            for state in _STATES:
                self.child("keephold_handles", state).value = counts.get(state, 0)
            self.child("keephold_store_last_event").value = (await store.events_range())[1]
        except KeepholdError:
            pass  # the store cannot be read now: show the last values


def _size(value: Any) -> int:
    return len(to_utf8(value) if isinstance(value, str) else to_json(value))


def _percentiles(values: Sequence[float], unit: float) -> dict[str, float | None]:
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p99": None}
    last = len(ordered) - 1
    return {name: round(unit * ordered[round(last * at)], 6) for name, at in (("p50", 0.5), ("p99", 0.99))}


def route_of(scope: Scope) -> str:
    """Return the template of a request's route."""
    return str(getattr(scope.get("route"), "path", "") or NO_ROUTE)


class Requests:
    """Counts HTTP requests. It is the outermost layer, so that it counts refused requests too."""

    def __init__(self, app: ASGIApp, metrics: Prometheus) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, counted = time.perf_counter(), False
        method = scope["method"] if scope["method"] in _METHODS else "other"

        def count(status: int) -> None:
            nonlocal counted
            counted, route = True, route_of(scope)
            self._metrics.child("keephold_http_requests_total", method, route, str(status)).inc()
            seconds = self._metrics.child("keephold_http_request_seconds", method, route)
            seconds.observe(time.perf_counter() - began)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if not counted:
                count(500)
            raise
