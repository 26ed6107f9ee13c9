"""`/metrics`: a runtime in numbers, for Prometheus. `Runtime(metrics=Prometheus())` fills it.

Labels are names of tools, kinds, states, statuses, models and route templates: what a configuration bounds. No id, no
conversation, no key and no path is ever a label (K5). The registry of collectors is this object's own.

What was told last is kept for `snapshot`, which the dashboard shows: percentiles of the last thousand waits.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from keephold.errors import KeepholdError
from keephold.handles.observing import Asking
from keephold.handles.registry import Registry
from keephold.handles.state import Ok, Stopped
from keephold.handles.text import to_json, to_utf8
from keephold.serve.commit_metrics import Written
from keephold.serve.numbers import Family, Numbers
from keephold.store.rows import Kind, status_of
from keephold.tools.waiting.measure import CREATED, SECONDS, SETTLED, WAIT_SECONDS, WAITS

INSTANT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds, for what should take next to none."""
LONG = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
"""Seconds, for what takes as long as it takes."""
_RECENT = 1000
_STATES = ("pending", "running", "waiting", "stopped", "parked")


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
        self.needs: Callable[[], Awaitable[int]] | None = None
        """How much waits for a person."""
        self._open = 0
        self._calls = self._produced = self._shown = self._waits = 0
        self._waited: deque[float] = deque(maxlen=_RECENT)
        self._woken: deque[float] = deque(maxlen=_RECENT)

    # What it is told

    def count(self, name: str, **labels: str) -> None:
        self.child(name, *labels.values()).inc()

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.child(name, *labels.values()).observe(value)

    def child(self, *name_and_labels: str) -> Any:
        """The counter, gauge or histogram of that name and with these labels, in their order."""
        found = self._children.get(name_and_labels)
        if found is None:
            name, *values = name_and_labels
            found = self._children[name_and_labels] = self._families[name].child(tuple(values))
        return found

    def attach(self, registry: Registry) -> None:
        """Count what the runtime of that registry does."""
        self._of, registry.meter = registry, self
        Written(self).attach(registry)

    def ended(self, tool: str, kind: Kind, state: Stopped) -> None:
        self._calls += 1
        self.child("keephold_calls_total", tool, status_of(state)).inc()
        if isinstance(state.outcome, Ok):
            self.printed(tool, _size(state.outcome.value))

    def printed(self, tool: str, size: int) -> None:
        self._produced += size
        self.child("keephold_output_bytes_total", tool).inc(size)

    def shown(self, size: int) -> None:
        self._shown += size
        self.child("keephold_shown_bytes_total").inc(size)

    def waited(self, tool: str, status: str, secs: float) -> None:
        self._waits += 1
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
        """A stream of that kind (`events`, `output`, …) is open within."""
        gauge = self.child("keephold_event_streams", kind)
        self._open += 1
        gauge.inc()
        try:
            yield
        finally:
            self._open -= 1
            gauge.inc(-1)

    # What it tells

    def snapshot(self) -> dict[str, Any]:
        """What `stats` shows of this process, since its start."""
        return {
            "calls": self._calls,
            "bytes_produced": self._produced,
            "bytes_shown": self._shown,
            "waits": self._waits,
            "wait_seconds": _percentiles(self._waited, 1),
            "wakeup_ms": _percentiles(self._woken, 1000),
            "commits": int(self.child("keephold_store_commits_total").value),
            "streams": self._open,
        }

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text of `/metrics` in the format that is accepted, and its media type."""
        await self._look()
        encode, media = choose_encoder(accept)
        return encode(self.registry), media

    async def page(self, request: Request) -> Response:
        """`GET /metrics`."""
        body, media = await self.render(request.headers.get("accept", ""))
        return Response(body, media_type=None, headers={"content-type": media})

    async def _look(self) -> None:
        """What is read when somebody asks, as counting it would cost more."""
        store = self._of.store if self._of is not None else None
        if store is None or self._of is None or (store.durable and self._of.closing):
            return
        self.child("keephold_store_transactions").value = getattr(store, "commits", 0)
        try:
            if self.needs is not None:
                self.child("keephold_needs").value = await self.needs()
            counts = await store.count()
            for state in _STATES:
                self.child("keephold_handles", state).value = counts.get(state, 0)
            self.child("keephold_store_last_event").value = (await store.events_range())[1]
        except KeepholdError:
            pass  # it cannot be read just now: what was true last is shown


def _size(value: Any) -> int:
    return len(to_utf8(value) if isinstance(value, str) else to_json(value))


def _percentiles(values: Sequence[float], unit: float) -> dict[str, float | None]:
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p99": None}
    last = len(ordered) - 1
    return {name: round(unit * ordered[round(last * at)], 6) for name, at in (("p50", 0.5), ("p99", 0.99))}


COUNTERS: dict[str, tuple[str, ...]] = {
    CREATED: ("Handles spawned", "type"),
    SETTLED: ("Spawned handles that have stopped", "type", "status"),
    "keephold_calls_total": ("Calls that have stopped, spawned or not", "tool", "status"),
    WAITS: ("Waits for handles that have ended", "tool", "status"),
    "keephold_output_bytes_total": ("Bytes that tools printed and returned", "tool"),
    "keephold_shown_bytes_total": ("Bytes of that and of replies that were given to models",),
    "keephold_attempts_total": ("Further attempts that were planned after a failure",),
    "keephold_recovered_total": ("Calls of dead processes that were taken over",),
    "keephold_parked_total": ("Calls that have begun to wait for their completion from outside",),
    "keephold_resolved_total": ("Keys that somebody tried to resolve", "status"),
    "keephold_steps_total": ("Entries of journals", "kind"),
    "keephold_news_queued_total": ("News for conversations", "level"),
    "keephold_news_delivered_total": ("News that was given to an assistant", "level"),
    "keephold_store_commits_total": ("Commits that were written",),
    "keephold_store_refused_total": ("Commits that were not written", "code"),
    "keephold_http_requests_total": ("HTTP requests", "method", "route", "status"),
    "keephold_model_requests_total": ("Requests that a model has answered", "model"),
    "keephold_model_tokens_total": ("Tokens of these", "model", "direction"),
    "keephold_model_cost_dollars_total": ("What they cost, where a price is known", "model"),
}
GAUGES: dict[str, tuple[str, ...]] = {
    "keephold_handles": (
        "Spawned handles in the store; `waiting`: a question is open, `parked`: for the outside",
        "state",
    ),
    "keephold_needs": ("What waits for a person at the dashboard: permissions, questions, results, passwords",),
    "keephold_event_streams": ("Streams of events and of output that are open", "kind"),
    "keephold_store_last_event": ("Number of the newest event in the store",),
    "keephold_store_transactions": ("Transactions of this process; commits per transaction is the size of a group",),
}
"""By name what it says, and its labels."""

HISTOGRAMS: dict[str, tuple[Any, ...]] = {
    SECONDS: ("From spawn to stop", LONG, "type", "status"),
    WAIT_SECONDS: ("How long was waited for handles", LONG, "tool", "status"),
    "keephold_wakeup_seconds": ("From a visible stop until who waited for it went on", INSTANT),
    "keephold_queue_seconds": ("From registered to running", LONG),
    "keephold_asked_seconds": ("Until a question, a permission or a result was answered", LONG, "what"),
    "keephold_store_commit_seconds": ("From a commit to its being visible", INSTANT),
    "keephold_http_request_seconds": ("From a request to the beginning of its response", INSTANT, "method", "route"),
}
"""By name what it says, its buckets, and its labels."""
