"""Spans that were exported, and the fixture that has a test traced."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from keephold import tracing


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def path(self, span: ReadableSpan) -> list[str]:
        """From the root down to the span."""
        by_id = {each.context.span_id: each for each in self.all if each.context is not None}
        names = [span.name]
        while span.parent is not None and span.parent.span_id in by_id:
            span = by_id[span.parent.span_id]
            names.insert(0, span.name)
        return names


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    tracing.use(made.provider)
    yield made
    tracing.use(None)
    made.provider.shutdown()


def said(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)
