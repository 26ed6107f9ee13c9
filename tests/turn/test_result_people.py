"""Whether a result may be delivered, asked of a person who is there (P1, P5, S3)."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import (
    STATEFUL,
    call,
    fetch,
    replies,
    settings,
    spawn,
    wait_all,
)
from tests.turn.people import Person, attended, few

import keephold
from keephold import Call, Runtime, ToolError
from keephold.outcomes import Failure, Ok
from keephold.testing import VirtualClock
from keephold.turn.budget import Projector
from keephold.turn.prompts import Answer, Approved, DeliverResult, Denied, Dismissed, Edited

BY_USER = "Result delivery skipped by user."


@keephold.tool(actions=STATEFUL, result="ask")
async def work(call: Call, fail: bool = False, secs: int = 0) -> Any:
    call.emit("printed secret\n")
    await asyncio.sleep(secs)
    if fail:
        raise ToolError("a secret went wrong", code="mine")
    return "a secret"


# What the person sees and says


@pytest.mark.parametrize("mode", ["ask", "edit"])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("fail", [False, True])
async def test_P1_the_person_sees_the_result_before_the_assistant(
    clock: VirtualClock, mode: Any, stateful: bool, fail: bool
) -> None:
    person = Person()
    async with attended(clock, [replace(work, result=mode)], person=person) as (_, turn):
        batch = asyncio.create_task(
            turn.run([spawn("work", "w", fail=fail), wait_all("w")] if stateful else [call("work", fail=fail)])
        )
        prompt = await person.says(Approved())
        assert prompt == DeliverResult(
            uid=prompt.uid,
            digest=prompt.digest,
            request=prompt.request,
            tool="work",
            id="w" if stateful else None,
            result="a secret went wrong" if fail else "a secret",
            is_error=fail,
            conversation="main",
            edit=mode == "edit",
        )
        response = (await batch)[-1]
        shown = json.loads(response.result)["completed"][0] if stateful else {"result": response.result}
        assert shown["result"] == ("a secret went wrong" if fail else "a secret")
        assert (shown.get("is_error", False) if stateful else response.is_error) is fail


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (Edited("the public part"), "the public part"),
        (Denied(), BY_USER),
        (Denied(""), BY_USER),
        (Denied("too long"), "Result delivery skipped by user: too long"),
        (Dismissed(), "Result delivery cancelled."),
    ],
)
@pytest.mark.parametrize("fail", [False, True])
async def test_P1_what_is_not_delivered_is_nowhere(clock: VirtualClock, said: Any, shown: str, fail: bool) -> None:
    """Neither in the reply, nor in what can be read later; and a failure stays one (S3)."""
    person = Person(said, said)
    async with attended(clock, [work], person=person) as (rt, turn):
        one_shot, _, waited = await turn.run([call("work", fail=fail), spawn("work", "w", fail=fail), wait_all("w")])
        assert (one_shot.result, one_shot.is_error) == (shown, fail)
        assert json.loads(waited.result)["completed"][0]["result"] == shown
        info = await rt.handle("w", conversation="main")
        assert info.outcome == (Failure(shown, "mine") if fail else Ok(shown)) and info.output_bytes == 0
        later = await turn.run([fetch("work", "w"), call("read_output", id="w")])
        record = await rt.registry.store.handle(info.uid)
        assert "secret" not in str(record) and all("secret" not in response.result for response in later)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (RuntimeError("gone"), "RuntimeError: gone"),
        (Dismissed("no terminal"), "no terminal"),
        ("yes", "returned a str"),
        (None, "returned a NoneType"),
    ],
)
async def test_P1_a_prompt_that_fails_withholds_the_result(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture, said: Any, why: str
) -> None:
    with caplog.at_level(logging.CRITICAL):
        async with attended(clock, [work], person=Person(said)) as (_, turn):
            (response,) = await turn.run([call("work")])
            assert response.code == "permission_denied" and why in response.result
            assert "secret" not in response.result


async def test_P1_a_decision_that_is_none_of_delivery_withholds_it(clock: VirtualClock) -> None:
    async with attended(clock, [work], person=Person(Answer(True))) as (_, turn):
        (response,) = await turn.run([call("work")])
        assert "secret" not in response.result


async def test_P1_values_that_are_no_text_are_shown_as_a_model_gets_them(clock: VirtualClock) -> None:
    @keephold.tool(result="ask")
    async def data() -> dict[str, int]:
        return {"n": 1}

    person = Person(Approved())
    async with attended(clock, [data], person=person) as (_, turn):
        (response,) = await turn.run([call("data")])
        assert response.result == '{"n":1}'
        assert isinstance(person.seen[0], DeliverResult) and person.seen[0].result == '{"n":1}'


async def test_S3_an_edited_value_that_is_no_text_is_shown_as_json(clock: VirtualClock) -> None:
    async with attended(clock, [work], person=Person(Edited({"n": 1, "ok": True}))) as (_, turn):
        assert (await turn.run([call("work")]))[0].result == '{"n":1,"ok":true}'


@pytest.mark.parametrize(
    ("mode", "policy", "shown"),
    [
        ("ask", "deny", False),
        ("edit", "deny", False),
        ("ask", "defaults", False),
        ("ask", "auto", True),
        ("edit", "auto", True),
        ("skip", "auto", False),
        ("unattended", "deny", True),
    ],
)
async def test_P2_with_nobody_there_detached_decides(
    clock: VirtualClock, tmp_path: Path, mode: Any, policy: str, shown: bool
) -> None:
    config = settings(tmp_path, f'[conversation]\ndetached = "{policy}"\n')
    async with attended(clock, [replace(work, result=mode)], config=config) as (_, turn):
        (response,) = await turn.run([call("work")])
        assert (response.result == "a secret") is shown
        assert shown or "secret" not in response.result


@pytest.mark.parametrize("mode", ["unattended", "skip"])
async def test_P1_unattended_and_skip_ask_nobody(clock: VirtualClock, mode: Any) -> None:
    person = Person()
    async with attended(clock, [replace(work, result=mode)], person=person) as (_, turn):
        (response,) = await turn.run([call("work")])
        assert response.result == ("a secret" if mode == "unattended" else "Result delivery skipped by configuration.")
        assert person.seen == []


async def test_P1_a_projector_that_raises_leaves_no_call_unanswered(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Raises(Projector):
        def value(self, value: Any, view: Any, hint: str) -> str:
            raise RuntimeError("cannot")

    person = Person(Approved())
    async with Runtime([work], clock=clock, prompter=person, projector=Raises()) as rt, rt.turn("main") as turn:
        batch = asyncio.create_task(turn.run([call("work")]))
        await clock.advance(60)
        if not batch.done():
            turn.cancel()
        (response,) = await batch
        assert response.is_error and "could not be shown" in response.result


# Results that the tool did not get to by itself


@pytest.mark.parametrize("mode", ["skip", "ask"])
async def test_P1_B7_a_tools_own_result_when_it_is_cancelled_is_a_result_too(clock: VirtualClock, mode: Any) -> None:
    @keephold.tool(result=mode)
    async def confesses() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "a secret"
        return "never"

    async with attended(clock, [confesses], person=Person()) as (_, turn):
        batch = asyncio.create_task(turn.run([call("confesses")]))
        await clock.advance(1)
        turn.cancel()
        (response,) = await batch
        assert "secret" not in response.result


@pytest.mark.parametrize("mode", ["skip", "ask"])
async def test_P1_what_a_call_printed_before_it_timed_out_is_not_shown_either(clock: VirtualClock, mode: Any) -> None:
    """The reason is told; what it printed is what the mode is about."""
    async with attended(clock, [replace(work, result=mode, timeout_secs=5)], person=Person()) as (_, turn):
        (response,) = await turn.run([keephold.ToolCall("c1", "work", {"secs": 60})])
        assert response.code == "timeout" and "timed out after 5 s" in response.result
        (read,) = await turn.run([call("read_output", call_id="c1")])
        assert "secret" not in response.result and "secret" not in read.result


# Built-ins


@pytest.mark.parametrize(("said", "shown"), [(Approved(), True), (Denied(), False)])
async def test_P1_a_built_in_can_be_asked_about_too(
    clock: VirtualClock, tmp_path: Path, said: Any, shown: bool
) -> None:
    config = settings(tmp_path, '[conversation.tools.await]\nsource = "builtin"\nresult = "ask"\nrun = "unattended"\n')
    person = Person(said)
    async with attended(clock, [replace(work, result="unattended")], person=person, config=config) as (_, turn):
        *_, waited = await turn.run([spawn("work", "w"), wait_all("w")])
        assert ("a secret" in waited.result) is shown
        assert isinstance(person.seen[0], DeliverResult) and "a secret" in person.seen[0].result


async def test_P5_prompts_of_all_kinds_wait_for_each_other(clock: VirtualClock) -> None:
    person = Person()
    asked = replace(work, name="asked", run="ask", result="ask")
    async with attended(clock, [work, asked], person=person) as (_, turn):
        batch = asyncio.create_task(replies(turn, spawn("asked", "a"), spawn("work", "w"), wait_all("a", "w")))
        kinds = []
        while not batch.done():
            kinds.append(type(await person.says(Approved())).__name__)
            await few()
        assert kinds == ["RunTool", "DeliverResult", "DeliverResult"] and person.at_once == 1
