"""`/metrics`: what an operator sees of a runtime, and what nobody may see there (K5)."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from tests.durable.lives import ok, parked, power_cut, stopped, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, apply, call, spawn, wait_all
from tests.turn.people import Asked

import keephold
from keephold import Call, Key, Pending, Question, Runtime, ToolError, tracing
from keephold.handles.observing import Measure, Meter
from keephold.serve.metrics import COUNTERS, GAUGES, HISTOGRAMS, Prometheus, Requests
from keephold.serve.tracing import traced
from keephold.turn.prompts import Approved

SAMPLES = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def samples(metrics: Prometheus) -> SAMPLES:
    body, _ = await metrics.render()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read_text(body.decode())
        for sample in family.samples
    }


def value(found: SAMPLES, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


@keephold.tool(actions=TALKING)
async def talk(call: Call, what: str = "it") -> str:
    """Prints, then asks."""
    call.emit("twelve bytes")
    return str(await call.ask(Question(id="sure", text="Sure?")))


@keephold.tool
async def add(a: int, b: int) -> int:
    return a + b


def test_it_is_told_of_everything() -> None:
    assert isinstance(Prometheus(), Meter)


async def test_W8_handles_waits_questions_and_bytes() -> None:
    gate, metrics = asyncio.Event(), Prometheus()

    @keephold.tool(actions=STATEFUL)
    async def build() -> str:
        await gate.wait()
        return "built"

    async with Runtime([talk, add, build], metrics=metrics) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "t"), call("add", a=1, b=2), spawn("build", "b")])
        await until(lambda: rt.registry.conversation("main").open_questions == 1)
        open_now = await samples(metrics)
        waiting = asyncio.create_task(turn.run([wait_all("b")]))
        await until(lambda: bool(rt.registry.waiting))
        gate.set()
        await waiting
        await turn.run([wait_all("t")])  # it asks: who waits would wait for itself
        await turn.run([apply("talk", "t", "yes")])
        await turn.run([wait_all("t", "b")])
    found = await samples(metrics)
    assert value(open_now, "keephold_handles", state="waiting") == 1
    assert value(open_now, "keephold_handles", state="running") == 1
    assert value(found, "keephold_handles", state="stopped") == 2
    assert value(found, "keephold_handles_created_total", type="tool") == 2
    assert value(found, "keephold_handles_settled_total", type="tool", status="completed") == 2
    assert value(found, "keephold_handle_seconds_count", type="tool", status="completed") == 2
    assert value(found, "keephold_calls_total", tool="add", status="completed") == 1
    assert value(found, "keephold_waits_total", tool="await", status="completed") == 2
    assert value(found, "keephold_waits_total", tool="await", status="needs_input") == 1
    assert value(found, "keephold_wait_seconds_count", tool="await", status="completed") == 2
    assert value(found, "keephold_wakeup_seconds_count") == 1  # the others had nothing to wait for
    assert value(found, "keephold_asked_seconds_count", what="question") == 1
    assert value(found, "keephold_output_bytes_total", tool="talk") == len("twelve bytes") + len("yes")
    assert value(found, "keephold_output_bytes_total", tool="add") == 1
    assert (value(found, "keephold_shown_bytes_total") or 0) > 15
    assert value(found, "keephold_queue_seconds_count") == 6  # three calls of tools, three of `await`
    assert (value(found, "process_resident_memory_bytes") or 0) > 1_000_000


async def test_R5_attempts_permission_news_and_models() -> None:
    @keephold.tool(run="ask", retry=keephold.policies.RetryPolicy(policy="safe", max_attempts=2, base_delay_ms=1))
    async def flaky() -> str:
        raise ToolError("no", transient=True)

    metrics = Prometheus()
    async with Runtime([flaky], metrics=metrics, prompter=Asked(Approved())) as rt, rt.turn("main") as turn:
        await turn.run([call("flaky")])
        await rt.notify("deploy.done", "warning", "it is done", conversation="main")
        await turn.notifications()
    metrics.spent("model-1", input_tokens=100, output_tokens=20, cost=0.5)
    metrics.spent("model-1", input_tokens=1, output_tokens=2, cost=None)
    found = await samples(metrics)
    assert value(found, "keephold_attempts_total") == 1
    assert value(found, "keephold_asked_seconds_count", what="permission") == 1
    assert value(found, "keephold_calls_total", tool="flaky", status="failed") == 1
    assert value(found, "keephold_notifications_queued_total", level="warning") == 1
    assert value(found, "keephold_notifications_delivered_total", level="warning") == 1
    assert value(found, "keephold_model_requests_total", model="model-1") == 2
    assert value(found, "keephold_model_tokens_total", model="model-1", direction="input") == 101
    assert value(found, "keephold_model_tokens_total", model="model-1", direction="output") == 22
    assert value(found, "keephold_model_cost_dollars_total", model="model-1") == 0.5


def approval(keys: list[Key]) -> list[keephold.Tool]:
    @keephold.tool(actions=STATEFUL)
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        return Pending()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def deploy(call: Call) -> Any:
        async def create(given: Any) -> str:
            return "made"

        await call.durable().run_json("create", {}, create)
        return await call.durable().await_event_json(await call.durable().external_event_key("go"))

    return [approve, deploy]


async def test_R1_what_is_parked_resolved_journaled_and_taken_over(tmp_path: Path) -> None:
    keys: list[Key] = []
    metrics, later = Prometheus(), Prometheus()
    async with Runtime(approval(keys), store=stored_in(tmp_path), metrics=metrics) as rt:
        await rt.call_queue("main").call(spawn("approve", "a"))
        await rt.call_queue("main").call(spawn("deploy", "d"))
        await parked(rt)
        await until(lambda: _journaled(rt, "d"))
        found = await samples(metrics)
        async with Runtime(approval(keys), store=power_cut(stored_in(tmp_path)), metrics=later) as again:
            await again.resolve(keys[0], ok("yes"))
            await stopped(again, "a")
            await again.resolve(keys[0], ok("no"))
            after = await samples(later)
    assert value(found, "keephold_parked_total") == 1
    assert value(found, "keephold_handles", state="parked") == 1
    assert value(found, "keephold_steps_total", kind="step") == 1
    assert (value(found, "keephold_store_commits_total") or 0) >= (value(found, "keephold_store_transactions") or 0) > 0
    assert value(found, "keephold_store_commit_seconds_count") == value(found, "keephold_store_commits_total")
    assert (value(found, "keephold_store_last_event") or 0) > 0
    assert value(after, "keephold_recovered_total") == 1
    assert value(after, "keephold_resolved_total", status="accepted") == 1
    assert value(after, "keephold_resolved_total", status="already_resolved") == 1


async def _journaled(rt: Runtime, id: str) -> bool:
    return bool(await rt.registry.store.journal((await rt.handle(id, conversation="main")).uid))


async def test_a_snapshot_for_the_dashboard() -> None:
    metrics = Prometheus()
    empty = {"p50": None, "p99": None}
    assert metrics.snapshot()["wait_seconds"] == empty
    async with Runtime([talk, add], metrics=metrics) as rt, rt.turn("main") as turn:
        await turn.run([call("add", a=1, b=2), spawn("talk", "t")])
        with metrics.stream():
            assert metrics.snapshot()["streams"] == 1
    for secs in range(100):
        metrics.waited("await", "completed", float(secs))
        metrics.woken(secs / 1000)
    told = metrics.snapshot()
    assert told["calls"] == 2
    assert told["bytes_produced"] == len("3") + len("twelve bytes")
    assert told["bytes_shown"] > 0 and told["commits"] > 0
    assert told["waits"] == 100
    assert told["wait_seconds"] == {"p50": 50, "p99": 98}
    assert told["wakeup_ms"] == {"p50": 50, "p99": 98}
    assert told["streams"] == 0


async def hello(request: Request) -> Response:
    if request.path_params.get("key") == "bad":
        raise RuntimeError("no")
    return JSONResponse({"ok": True})


@asynccontextmanager
async def client(metrics: Prometheus) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application that has its requests counted."""
    routes = [
        Route("/metrics", metrics.page),
        Route("/complete/{key}", hello, methods=["POST"]),
        Mount("/inner", routes=[Route("/{name}", hello)]),
    ]
    app = Requests(traced(Starlette(routes=routes)), metrics)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as made:
        yield made


async def test_K5_requests_are_counted_by_their_route_and_never_by_their_path() -> None:
    metrics = Prometheus()
    async with client(metrics) as http:
        for key in ("hf1-secret", "hf1-other", "bad"):
            await http.post(f"/complete/{key}")
        await http.get("/nowhere/hf1-secret")
        await http.request("BREW", "/inner/hf1-secret")
        await http.get("/inner/hf1-secret")
        text = (await http.get("/metrics")).text
    assert 'keephold_http_requests_total{method="POST",route="/complete/{key}",status="200"} 2.0' in text
    assert 'keephold_http_requests_total{method="POST",route="/complete/{key}",status="500"} 1.0' in text
    assert 'keephold_http_requests_total{method="GET",route="none",status="404"} 1.0' in text
    assert re.search(r'keephold_http_requests_total{method="other",route="[^"]*",status="405"} 1.0', text)
    assert "secret" not in text and "nowhere" not in text and "BREW" not in text


async def test_two_metrics_of_one_runtime_count_the_same() -> None:
    one, other = Prometheus(), Prometheus()
    async with Runtime([add, talk], metrics=one, prompter=Asked(keephold.prompts.Answer("yes"))) as rt:
        Measure(other).begin(rt.registry)
        async with rt.turn("main") as turn:
            await turn.run([call("add", a=1, b=2), spawn("talk", "t")])
            await turn.run([wait_all("t")])
        await rt.call_queue("desk").call(call("add", a=1, b=2))
        found = [await samples(metrics) for metrics in (one, other)]
    counted = [{key: each[key] for key in each if re.match("keephold_.*_(total|count)", key[0])} for each in found]
    assert counted[0] == counted[1]
    assert value(found[1], "keephold_calls_total", tool="add", status="completed") == 2
    assert value(found[1], "keephold_waits_total", tool="await", status="completed") == 1


@pytest.mark.parametrize(
    ("accept", "media", "read"),
    [
        ("", "text/plain", read_text),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", read_openmetrics),
    ],
)
async def test_both_formats_can_be_read(accept: str, media: str, read: Any) -> None:
    metrics = Prometheus()
    metrics.count("keephold_handles_created_total", type="tool")
    async with client(metrics) as http:
        answer = await http.get("/metrics", headers={"accept": accept} if accept else {})
    assert answer.headers["content-type"].startswith(media)
    assert "keephold_handles_created" in {family.name for family in read(answer.text)}


async def test_K5_no_label_holds_an_id_a_conversation_or_a_key(tmp_path: Path) -> None:
    keys: list[Key] = []
    metrics = Prometheus()
    async with Runtime([*approval(keys), talk], store=stored_in(tmp_path), metrics=metrics) as rt:
        for number in range(3):
            await rt.call_queue(f"conversation-{number}").call(spawn("approve", f"handle-{number}"))
            await rt.call_queue(f"conversation-{number}").call(call(f"unknown-{number}"))
        await parked(rt, 3)
        await rt.resolve(keys[0], ok("the-result"))
        text = (await metrics.render())[0].decode()
    for word in ("conversation-", "handle-", "unknown-", "the-result", str(keys[0])):
        assert word not in text


async def test_the_traceparent_of_a_request_is_the_parent_of_what_is_done_for_it() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    try:
        async with client(Prometheus()) as http:
            given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            await http.post("/complete/hf1-secret", headers={"traceparent": given})
            await http.post("/complete/bad")
    finally:
        tracing.use(None)
    first, second = exporter.get_finished_spans()
    assert first.context is not None and first.parent is not None
    assert f"{first.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{first.parent.span_id:016x}" == "b7ad6b7169203331"
    assert first.name == "POST /complete/{key}"
    assert not second.status.is_ok
    assert "secret" not in first.to_json()


def test_the_reference_lists_every_metric_with_its_labels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(keephold_\w+)` \| ([^|]*)\|", page, re.MULTILINE)
    listed = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    have = {name: labels for name, (_, *labels) in (*COUNTERS.items(), *GAUGES.items())}
    have |= {name: labels for name, (_, _, *labels) in HISTOGRAMS.items()}
    assert listed == {name: tuple(labels) for name, labels in have.items()}
