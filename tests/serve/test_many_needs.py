"""Very much waits for a person at once (K6): it is counted unseen, told of once, and shown a page at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE, until
from tests.serve.application import Application, application
from tests.serve.pages import Page
from tests.turn.calls import TALKING, abort, call, spawn

import keephold
from keephold import Call, Question
from keephold.control import open_requests
from keephold.turn.prompts import RunTool

MANY = 300


@keephold.tool(run="ask")
async def careful() -> str:
    return "done"


@asynccontextmanager
async def crowded(served: Application) -> AsyncIterator[None]:
    """So many permissions are asked for, all at once."""
    prompts = [
        RunTool(tool="t", action="spawn", id=f"x{number}", arguments={}, conversation="c", uid=f"uid-{number}")
        for number in range(MANY)
    ]
    asking = [served.runtime.prompt_queue.ask(prompt, lambda _: None) for prompt in prompts]
    try:
        yield
    finally:
        for each in asking:
            each.withdraw()


async def test_K6_a_crowd_of_prompts_is_one_change_and_none_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    describe = open_requests.described

    def noted(id: str, *rest: Any) -> dict[str, Any]:
        described.append(id)
        return describe(id, *rest)

    monkeypatch.setattr(open_requests, "described", noted)
    async with application() as served:
        told: list[Any] = []
        monkeypatch.setattr(served.app.feed, "announce", lambda type, data: told.append((type, data)))
        async with crowded(served):
            await asyncio.sleep(0)
            assert told == [("requests", {"open": MANY})] and len(served.needs) == MANY
            assert described == []
        await asyncio.sleep(0)
        assert told[1:] == [("requests", {"open": 0})]


async def test_K6_needs_are_shown_a_page_at_a_time_and_counted_in_full() -> None:
    async with application() as served, served.client() as http, crowded(served):
        listed = (await http.get("/api/requests")).json()
        assert [need["handle"] for need in listed] == [f"uid-{number}" for number in range(200)]
        assert (await http.get("/api/requests?limit=3")).json() == listed[:3]
        assert (await http.get("/api/requests?limit=201")).status_code == 400
        assert (await http.get("/api/stats")).json()["requests"] == MANY
        page = Page((await http.get("/")).text)
        assert len(page.all("article")) == 50 and page.title.startswith(f"({MANY}) ")
        assert f"{MANY - 50} more" in page.texts("p", id="requests-more")[0]


async def test_a_need_that_is_on_no_page_is_found_and_decided() -> None:
    async with (
        application([careful]) as served,
        served.client() as http,
        served.runtime.turn("main") as turn,
    ):
        running = asyncio.create_task(turn.run([call("careful")] * 60))
        await until(lambda: len(served.needs) == 60)
        last = served.needs.listed()[-1]
        assert f"request-{last['id']}" not in (await http.get("/")).text
        assert await served.control.requests.page(handle=last["handle"]) == [last]
        answer = await http.post(f"/do/requests/{last['id']}", data={"decision": "deny"})
        assert answer.status_code == 303 and "said=denied" in answer.headers["location"]
        assert await served.control.requests.get(last["id"]) is None and len(served.needs) == 59
        for need in served.needs.listed():
            await served.control.decide(need["id"], {"decision": "approve"})
        responses = await running
        assert [response.result for response in responses][-2:] == ["done", "Tool skipped by user."]


async def test_L1_questions_of_other_processes_count_as_well(tmp_path: Path) -> None:
    @keephold.tool(actions=TALKING)
    async def asks(call: Call) -> str:
        return str(await call.ask(Question(id="q", text="Well?", answer_type="Text")))

    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with application(store=store) as served, served.client() as http, keephold.Runtime([asks], store=store) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("asks", "a"), spawn("asks", "b")])
            async with asyncio.timeout(PATIENCE):
                while (await http.get("/api/stats")).json()["requests"] != 2:  # noqa: ASYNC110 (they are about to ask)
                    await asyncio.sleep(0.01)
            assert "\nkeephold_open_requests 2.0\n" in (await http.get("/metrics")).text
            await turn.run([abort("asks", "a"), abort("asks", "b")])
        assert "\nkeephold_open_requests 0.0\n" in (await http.get("/metrics")).text
