"""Those who decide a question by its id at the wrong moment: twice at once, or too late (P6)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.control.places import PLACES, controlled, uid_of
from tests.patience import until
from tests.turn.calls import TALKING, spawn

import keephold
from keephold import Call, Question
from keephold.control.control import Control
from keephold.handles.state import Reply
from keephold.turn.prompt_queue import FromList
from keephold.turn.prompts import TAKEN


@keephold.tool(actions=TALKING)
async def asks(call: Call) -> str:
    """Asks twice."""
    first = await call.ask(Question(id="word", text="Which word?"))
    second = await call.ask(Question(id="word", text="Which other word?"))
    return f"{first} {second}"


async def open_question(control: Control) -> str | None:
    listed = await control.requests.page()
    return listed[0]["id"] if listed else None


@pytest.mark.parametrize("place", PLACES)
async def test_P6_of_two_answers_at_once_the_first_counts_and_only_it_is_taken(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [asks]) as (control, rt), rt.turn("main") as turn:
        rt.prompt_queue._prompter = FromList()
        await turn.run([spawn("asks", "a")])
        for words in (("one", "two"), ("three", "four")):
            id = await until(lambda: open_question(control))
            answers = [{"decision": "answer", "value": word} for word in words]
            told = await asyncio.gather(*(control.decide(id, answer) for answer in answers))
            assert sorted(each["status"] for each in told) == ["gone", "taken"]
        await rt.wait(all=["a"], conversation="main")
        outcome = (await control.runtime_view.handle(await uid_of(rt, "a")))["outcome"]
        assert outcome["value"] == "one three"


async def test_P6_a_late_cancel_does_not_end_a_call_whose_question_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controlled("elsewhere", tmp_path, [asks]) as (control, rt), rt.turn("main") as turn:
        rt.prompt_queue._prompter = FromList()
        await turn.run([spawn("asks", "a")])
        first, uid = await until(lambda: open_question(control)), await uid_of(rt, "a")
        perform = control.runtime.actions.perform

        async def late(*given: Any, **more: Any) -> Reply:
            """Another server answers before the process that asks hears of this."""
            monkeypatch.undo()
            await Control(rt).answer(uid, "one")
            return await perform(*given, **more)

        monkeypatch.setattr(control.runtime.actions, "perform", late)
        assert (await control.decide(first, {"decision": "cancel"}))["status"] == "gone"
        second = await until(lambda: open_question(control))
        assert second != first and await control.decide(second, {"decision": "cancel"}) == TAKEN
        await rt.wait(all=["a"], conversation="main")
        assert (await control.runtime_view.handle(uid))["outcome"]["code"] == "input_cancelled"
        assert (await control.decide(second, {"decision": "cancel"}))["status"] == "gone"
