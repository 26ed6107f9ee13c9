"""OpenTelemetry traces: turn → call → attempt → step → wait, across parks and restarts.

Only the API is used. Calls are traced if the program sets a tracer provider (such as by `opentelemetry-instrument`)
before it makes a runtime; otherwise this module is not imported.

Names and attributes follow OpenTelemetry's conventions for generative AI where they exist, else `keephold.*`. Spans
hold no arguments, results, keys or texts (K5).

A call's context is a line of its journal (kind `trace`), written with the call. After a crash, another process
continues the trace with a span below the lost one. A completion links to the span that sent it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from keephold.handles.handle import Handle
from keephold.handles.observing import Asking
from keephold.handles.registry import Registry
from keephold.handles.state import Failure, Stopped
from keephold.store.base import (
    Attempted,
    Changed,
    Done,
    Entry,
    Failed,
    HandleQuery,
    Journaled,
    Op,
    Parked,
    Record,
    Registered,
    Resolved,
    TurnBegan,
    TurnEnded,
)
from keephold.store.rows import What

KIND: Literal["trace"] = "trace"
"""The kind of the journal line that holds a call's context."""
_NAME = "context"
_provider: TracerProvider | None = None
_propagator = TraceContextTextMapPropagator()


def use(provider: TracerProvider | None) -> None:
    """Trace with this provider; None: with the program's global provider, if it has one."""
    global _provider
    _provider = provider


def tracer() -> Tracer | None:
    provider = _provider if _provider is not None else trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("keephold")


def begin(registry: Registry) -> None:
    """Trace the calls of the registry, if there is a tracer provider."""
    made = tracer()
    if made is not None:
        CallTraces(registry, made)


class _Traced:
    """A call that has a span."""

    __slots__ = ("attempt", "parent", "span", "waits")

    def __init__(self, span: Span, parent: Context | None) -> None:
        self.span = span
        self.parent = parent
        self.attempt: Span | None = None
        self.waits: list[Span] = []

    def within(self) -> Context:
        return trace.set_span_in_context(self.attempt or self.span)

    def end_attempt(self) -> None:
        if self.attempt is not None:
            self.attempt.end()
            self.attempt = None

    def end(self) -> None:
        for span in self.waits:
            span.end()  # no effect if it has ended already
        self.end_attempt()
        self.span.end()


class CallTraces:
    """The spans of one runtime, made from the calls to `registry.traces` and from its commits."""

    def __init__(self, registry: Registry, tracer: Tracer) -> None:
        self._registry = registry
        self._tracer = tracer
        self._calls: dict[str, _Traced] = {}
        self._turns: dict[tuple[str, str], Span] = {}
        self._earlier: dict[tuple[str, str], Context] = {}
        """The contexts of turns that are about to be resumed."""
        self._brought: dict[str, Link] = {}
        """By uid: the link to the span that sent its completion."""
        registry.observe_commits(self._observe)
        registry.on_settled.add(self._settled)
        registry.traces = self

    # Turns

    async def resuming(self, conversation: str, turn: str) -> None:
        store = self._registry.store
        for record in await store.handles(HandleQuery(conversation=conversation, turn=turn, stateful=None, limit=1)):
            found = _stored(await store.journal(record.uid), "turn")
            if found is not None:
                self._earlier[conversation, turn] = found

    def entered(self, conversation: str, turn: str) -> Callable[[], None]:
        span = self._turns.get((conversation, turn))
        if span is None:
            return lambda: None
        before = contexts.get_current()
        contexts.attach(trace.set_span_in_context(span))
        # Not `detach`, which complains if another task leaves the turn.
        return lambda: contexts.attach(before) and None

    def _turn_began(self, op: TurnBegan) -> None:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": op.conversation,
            "keephold.turn": op.turn,
        }
        earlier = self._earlier.pop((op.conversation, op.turn), None)
        span = self._tracer.start_span("invoke_agent", context=earlier, attributes=attributes)
        self._turns[op.conversation, op.turn] = span

    def _turn_over(self, op: TurnBegan | TurnEnded, error: Exception | None = None) -> None:
        span = self._turns.pop((op.conversation, op.turn), None)
        if span is not None:
            if error is not None:
                span.set_status(StatusCode.ERROR, type(error).__name__)
            span.end()

    # Calls

    def registering(self, handles: Sequence[Handle], failed: Failed) -> Failed:
        for handle in handles:
            turn = self._turns.get((handle.conversation, handle.turn))
            self._start(_facts(handle), handle.uid, _below(turn), turn)
            if isinstance(handle.state, Stopped):  # its arguments were invalid
                self._end(handle.uid, handle.state)
        return partial(self._not_registered, [handle.uid for handle in handles], failed)

    def _start(self, facts: Mapping[str, Any], uid: str, parent: Context | None, turn: Span | None = None) -> _Traced:
        attributes = {"gen_ai.operation.name": "execute_tool", **facts}
        span = self._tracer.start_span(f"execute_tool {facts['gen_ai.tool.name']}", parent, attributes=attributes)
        traced = self._calls[uid] = _Traced(span, None if turn is None else trace.set_span_in_context(turn))
        return traced

    def _not_registered(self, uids: Sequence[str], failed: Failed, error: Exception) -> None:
        for uid in uids:
            traced = self._calls.pop(uid, None)
            if traced is not None:
                traced.span.set_status(StatusCode.ERROR, "not registered")
                traced.end()
        failed(error)

    async def taken(self, record: Record) -> None:
        if record.uid not in self._calls:
            stored = _stored(await self._registry.store.journal(record.uid), "call")
            turn = self._turns.get((record.conversation, record.turn))
            facts = {**_facts(record), "keephold.recovered": True}
            self._start(facts, record.uid, stored if stored is not None else _below(turn), turn)

    def attempt(self, handle: Handle) -> AbstractContextManager[object]:
        traced = self._calls.get(handle.uid)
        if traced is None:
            traced = self._start(_facts(handle), handle.uid, None)
        traced.end_attempt()
        attributes: dict[str, Any] = {"keephold.attempt": handle.attempt, "keephold.uid": handle.uid}
        traced.attempt = self._tracer.start_span(
            "attempt", trace.set_span_in_context(traced.span), attributes=attributes
        )
        return trace.use_span(traced.attempt, record_exception=False, set_status_on_exception=False)

    def step(self, step_id: str) -> AbstractContextManager[object]:
        return _within(self._tracer, "step", {"keephold.step": step_id})

    def wait(self, what: str, handles: Sequence[str] = ()) -> AbstractContextManager[object]:
        attributes: dict[str, Any] = {"keephold.wait": what}
        if handles:
            attributes["keephold.wait.handles"] = tuple(handles)
        return _within(self._tracer, f"wait {what}", attributes)

    def asking(self, uid: str, what: Asking) -> Callable[[], None]:
        return self._waiting(uid, what).end

    def _waiting(self, uid: str, what: str) -> Span:
        traced = self._calls.get(uid)
        parent = traced.within() if traced is not None else None
        span = self._tracer.start_span(f"wait {what}", parent, attributes={"keephold.wait": what})
        if traced is not None:
            traced.waits.append(span)
        return span

    def _settled(self, uid: str, state: Stopped, what: What | None) -> None:
        if uid in self._calls:
            self._end(uid, state)
        elif self._registry.store.durable and not self._registry.closing:
            self._registry.run_soon(self._completed(uid, state, self._brought.pop(uid, None)))

    def _end(self, uid: str, state: Stopped) -> None:
        traced = self._calls.pop(uid)
        _say(traced.span, state)
        brought = self._brought.pop(uid, None)
        if brought is not None:
            traced.span.add_link(brought.context, brought.attributes)
        traced.end()

    async def _completed(self, uid: str, state: Stopped, brought: Link | None) -> None:
        """Record the end of a call that a dead process had parked: a span of its own, in the call's trace."""
        record = await self._registry.store.handle(uid)
        stored = _stored(await self._registry.store.journal(uid), "call") if record is not None else None
        if record is not None and stored is not None:
            facts = {"gen_ai.operation.name": "execute_tool", **_facts(record), "keephold.recovered": True}
            links = [] if brought is None else [brought]
            span = self._tracer.start_span(f"execute_tool {record.tool}", stored, attributes=facts, links=links)
            _say(span, state)
            span.end()

    def close(self) -> None:
        for traced in self._calls.values():
            traced.span.set_attribute("keephold.left", True)  # the next process that opens the store resumes it
            traced.end()
        for span in self._turns.values():
            span.set_attribute("keephold.left", True)
            span.end()
        self._calls.clear()
        self._turns.clear()

    # Commits

    def _observe(self, ops: Sequence[Op], done: Done, failed: Failed) -> tuple[Sequence[Op], Done, Failed]:
        kinds = {type(op) for op in ops}
        if kinds.isdisjoint(_OF_INTEREST):
            return ops, done, failed
        resolving: dict[str, Span] = {}
        for op in ops:
            if isinstance(op, TurnBegan):
                self._turn_began(op)
                failed = partial(self._not_begun, op, failed)
            elif isinstance(op, Resolved):
                resolving[op.key_id] = self._tracer.start_span(
                    "resolve", attributes={"keephold.status": op.resolution.status}
                )
        told = partial(self._written, ops, resolving, done)
        if resolving:
            failed = partial(_not_resolved, resolving, failed)
        return (*ops, *self._lines(ops)), told, failed

    def _not_begun(self, op: TurnBegan, failed: Failed, error: Exception) -> None:
        self._turn_over(op, error)
        failed(error)

    def _lines(self, ops: Sequence[Op]) -> list[Op]:
        """Return the contexts of new calls that have not stopped."""
        over = {op.uid for op in ops if isinstance(op, Changed) and isinstance(op.state, Stopped)}
        lines: list[Op] = []
        for op in ops if self._registry.store.durable else ():
            if not isinstance(op, Registered) or op.record.uid in over or isinstance(op.record.state, Stopped):
                continue
            traced = self._calls.get(op.record.uid)
            if traced is not None:
                value = {"call": _carrier(trace.set_span_in_context(traced.span))}
                if traced.parent is not None:
                    value["turn"] = _carrier(traced.parent)
                line = msgspec.json.encode(value)
                lines.append(Journaled(op.record.uid, op.record.fence, KIND, _NAME, b"", line))
        return lines

    def _written(self, ops: Sequence[Op], resolving: Mapping[str, Span], done: Done, results: Sequence[Any]) -> None:
        for op, result in zip(ops, results, strict=False):
            match op:
                case TurnEnded():
                    self._turn_over(op)
                case Attempted(uid, _, _, next_at) if next_at is not None and uid in self._calls:
                    self._calls[uid].end_attempt()
                case Parked(uid) if uid in self._calls and not isinstance(result, Stopped):
                    self._calls[uid].end_attempt()
                    self._waiting(uid, "completion")
                case Resolved(key_id):
                    self._resolved(resolving[key_id], key_id, result)
        done(results[: len(ops)])

    def _resolved(self, span: Span, key_id: str, result: Any) -> None:
        """Link the resolving span and the waiting call to each other."""
        span.set_attribute("keephold.resolved", result.status)
        if result.status != "accepted":
            span.end()
            return
        if result.uid is not None:
            self._brought[result.uid] = Link(span.get_span_context())
        self._registry.run_soon(self._link(span, key_id))

    async def _link(self, span: Span, key_id: str) -> None:
        try:
            wait = await self._registry.store.wait(key_id)
            if wait is not None:
                span.set_attribute("keephold.uid", wait.uid)
                waiting = _stored(await self._registry.store.journal(wait.uid), "call")
                if waiting is not None:
                    span.add_link(trace.get_current_span(waiting).get_span_context())
        finally:
            span.end()


_OF_INTEREST = frozenset((TurnBegan, TurnEnded, Registered, Attempted, Parked, Resolved))


def _not_resolved(resolving: Mapping[str, Span], failed: Failed, error: Exception) -> None:
    for span in resolving.values():
        span.set_status(StatusCode.ERROR, type(error).__name__)
        span.end()
    failed(error)


def _below(turn: Span | None) -> Context | None:
    """Return the parent context of a call: the caller's current span if that is in the turn, else the turn."""
    if turn is None:
        return None
    current = trace.get_current_span().get_span_context()
    inside = current.is_valid and current.trace_id == turn.get_span_context().trace_id
    return None if inside else trace.set_span_in_context(turn)


def _facts(call: Handle | Record) -> dict[str, Any]:
    return {
        "gen_ai.tool.name": call.tool if isinstance(call, Record) else call.tool.name,
        "gen_ai.tool.call.id": call.call_id,
        "gen_ai.conversation.id": call.conversation,
        "keephold.handle": call.id,
        "keephold.uid": call.uid,
        "keephold.kind": call.kind,
    }


def _say(span: Span, state: Stopped) -> None:
    """Record how a call ended, without its texts."""
    span.set_attribute("keephold.ended_by", state.ended_by)
    if isinstance(state.outcome, Failure):
        span.set_attribute("error.type", state.outcome.code)
        if not state.deliberate:
            span.set_status(StatusCode.ERROR, state.outcome.code)


def _carrier(context: Context) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier


def _stored(entries: Sequence[Entry], of: str) -> Context | None:
    """Return the context of a call, or of its turn, from its journal."""
    for entry in entries:
        if entry.kind == KIND:
            carrier = msgspec.json.decode(entry.value).get(of)
            return _propagator.extract(carrier) if carrier else None
    return None


@contextmanager
def _within(
    tracer: Tracer, name: str, attributes: Mapping[str, Any], kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """Open a span around the block. For an exception only the type is recorded: texts may hold secrets."""
    with tracer.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", getattr(error, "code", None) or type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise


def chat(model: str) -> AbstractContextManager[Span]:
    """Open a span around a request to a model."""
    made = tracer()
    if made is None:
        return nullcontext(trace.INVALID_SPAN)
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
    return _within(made, f"chat {model}", attributes, SpanKind.CLIENT)


def answered(span: Span, model: str | None, input_tokens: int, output_tokens: int) -> None:
    """Record a model's answer in numbers."""
    span.set_attribute("gen_ai.usage.input_tokens", input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", output_tokens)
    if model is not None:
        span.set_attribute("gen_ai.response.model", model)
