"""Count what a runtime commits. A runtime without metrics does not run this code."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from keephold.handles.registry import Registry
from keephold.handles.state import Running, Started, Stopped
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
)

if TYPE_CHECKING:
    from keephold.serve.metrics import Prometheus


class Written:
    """Counts committed operations for the metrics."""

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

    def attach(self, registry: Registry) -> None:
        """Count what the runtime commits from now on."""
        registry.observe_commits(self._observe)

    def _observe(self, ops: Sequence[Op], done: Done, failed: Failed) -> tuple[Sequence[Op], Done, Failed]:
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
