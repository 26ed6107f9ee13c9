"""An answer goes to the question that was seen, or nowhere; and who is asked for a permission holds up nobody."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.control.places import PLACES, Needs, controlled, uid_of
from tests.patience import until
from tests.turn.calls import spawn

import keephold
from keephold import Call, Question, Runtime, ToolCall
from keephold.control.control import Control
from keephold.errors import KeepholdError
from keephold.testing import VirtualClock
from keephold.turn.prompt_queue import FromList

Places = pytest.mark.parametrize("place", PLACES)


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def careful(call: Call, ids: Sequence[str] = ("one", "two")) -> str:
    """Asks one thing after another, then reads a line."""
    said = [await call.ask(Question(id=id, text=f"{id}?", answer_type="Boolean")) for id in ids]
    return f"{said} {await call.input()}"


@Places
async def test_C6_an_answer_is_for_the_question_that_was_seen(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [careful]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("careful", "c", ids=["sure", "sure"])])
        uid = await uid_of(rt, "c")
        first = (await control.runtime_view.handle(uid))["question"]["key"]
        await control.answer(uid, True, question=first)
        second = await until(lambda: _asks(control, uid, first))
        with pytest.raises(KeepholdError, match="asks no question"):
            await control.answer(uid, True, question=first)
        await control.answer(uid, False, question=second)
        await until(lambda: _state(control, uid, "running"))
        for question in (None, "sure", second):
            with pytest.raises(KeepholdError, match="asks no question"):
                await control.answer(uid, True, question=question)
        await control.apply(uid, "a line")
        waited = await rt.wait(all=["c"], conversation="main")
        assert waited["completed"][0]["result"] == "[True, False] a line"


async def _asks(control: Control, uid: str, before: str) -> str | None:
    question = (await control.runtime_view.handle(uid))["question"]
    return None if question is None or question["key"] == before else str(question["key"])


async def _state(control: Control, uid: str, state: str) -> bool:
    return bool((await control.runtime_view.handle(uid))["state"] == state)


@Places
async def test_C6_of_many_answers_at_once_one_is_taken_and_none_is_input(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [careful]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("careful", "c", ids=["one"])])
        uid = await uid_of(rt, "c")
        answers = [control.answer(uid, True, question="one") for _ in range(4)]
        told = await asyncio.gather(*answers, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in told) == 1
        await control.apply(uid, "a line")
        waited = await rt.wait(all=["c"], conversation="main")
        assert waited["completed"][0]["result"] == "[True] a line"


async def test_a_need_of_another_process_is_gone_when_its_question_is(tmp_path: Path) -> None:
    async with controlled("elsewhere", tmp_path, [careful]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("careful", "c")])
        (stale,) = await control.requests.page()
        yes: dict[str, Any] = {"decision": "answer", "value": True}
        assert (await control.decide(stale["id"], yes))["status"] == "taken"
        await until(lambda: _asks(control, stale["handle"], stale["question"]["key"]))
        assert (await control.decide(stale["id"], yes))["status"] == "gone", "it was another question"
        assert (await control.runtime_view.handle(stale["handle"]))["question"]["id"] == "two"


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def work(call: Call) -> str:
    return "done"


async def test_M5_a_spawn_that_waits_for_a_permission_answers_pending(clock: VirtualClock) -> None:
    async with Runtime([replace(work, run="ask")], prompter=FromList(), clock=clock) as rt:
        needs = Needs(rt)
        desk = rt.call_queue("mcp")
        spawned = await desk.call(ToolCall("1", "work", {"action": "spawn", "id": "w"}))
        assert spawned.result == '{"id":"w","state":"pending"}'
        waiting = asyncio.create_task(desk.call(ToolCall("2", "await", {"all": ["w"]})))
        (need,) = needs.listed()
        assert need["handle_id"] == "w"
        needs.decide(need["id"], {"decision": "approve"})
        assert (await waiting).result == '{"completed":[{"id":"w","state":"stopped","result":"done"}],"pending":[]}'
