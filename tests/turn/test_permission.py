"""Permission while nobody can be asked (P1–P3)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import (
    TALKING,
    abort,
    apply,
    call,
    fetch,
    opened,
    replies,
    reply,
    settings,
    spawn,
    texts,
    wait_all,
)

import keephold
from keephold import Call, ToolError
from keephold.testing import VirtualClock

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@keephold.tool(actions=TALKING)
async def work(call: Call, fail: bool = False, talk: bool = False) -> str:
    ran.append("work")
    if talk:
        return str(await call.input())
    if fail:
        raise ToolError("a secret went wrong")
    return "a secret"


SKIPPED = "Tool skipped by user."


async def test_P1_functions_and_built_ins_run_unattended(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        assert (await texts(turn, call("work")))[0] == "a secret"
        await replies(turn, spawn("work", "w"), wait_all("w"), call("read_output", id="w"))


async def test_P1_P2_tools_of_a_file_ask_and_with_nobody_there_are_denied(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.touch]
        source = "local"
        command = ["touch", "ran"]
        """,
    )
    async with opened(clock, [], config=config) as (_, turn):
        (response,) = await turn.run([call("touch")])
        assert response.is_error
        assert 'run = "unattended"' in response.result and "[conversation.tools.touch]" in response.result
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", ["ask", "edit"])
async def test_P2_nobody_to_ask_denies_and_names_the_setting_that_would_allow_it(
    clock: VirtualClock, mode: Any
) -> None:
    async with opened(clock, [replace(work, run=mode)]) as (_, turn):
        one_shot, spawned = await turn.run([call("work"), spawn("work", "w")])
        assert one_shot.is_error
        for result in (one_shot.result, (await reply(turn, fetch("work", "w")))["result"]):
            assert f'run = "{mode}"' in result and '`run = "unattended"`' in result and '`detached = "auto"`' in result
        assert "is_error" in spawned.result
    assert ran == []


async def test_P2_detached_auto_leaves_it_to_the_assistant_who_decided_by_calling(
    clock: VirtualClock, tmp_path: Path
) -> None:
    for detached, expected in (("auto", True), ("defaults", False), ("deny", False)):
        config = settings(tmp_path, f'[conversation]\ndetached = "{detached}"\n')
        async with opened(clock, [replace(work, run="ask")], config=config) as (_, turn):
            (response,) = await turn.run([call("work")])
            assert (not response.is_error) is expected


async def test_P1_asked_on_spawn_and_one_shot_calls_only(clock: VirtualClock) -> None:
    tool = replace(work, run_actions={"spawn": "unattended"}, run="ask")
    async with opened(clock, [tool]) as (_, turn):
        one_shot, *_ = await turn.run([call("work"), spawn("work", "a", talk=True), spawn("work", "b", talk=True)])
        assert one_shot.is_error
        fetched, applied, aborted = await replies(turn, fetch("work", "a"), apply("work", "a", "x"), abort("work", "b"))
        assert (fetched["state"], applied["result"], aborted["ended_by"]) == ("running", "x", "abort")


@pytest.mark.parametrize("action", ["fetch", "apply", "abort"])
async def test_P1_run_actions_says_otherwise_for_an_action(clock: VirtualClock, action: Any) -> None:
    named = {"fetch": fetch("work", "w"), "apply": apply("work", "w", "x"), "abort": abort("work", "w")}
    async with opened(clock, [replace(work, run_actions={action: "ask"})]) as (rt, turn):
        await replies(turn, spawn("work", "w", talk=True))
        (denied,) = await turn.run([named[action]])
        assert denied.is_error and f'`run_actions.{action} = "unattended"`' in denied.result
        assert (await rt.handle("w", conversation="main")).state == "running"
    async with opened(clock, [replace(work, run_actions={action: "skip"})]) as (rt, turn):
        await replies(turn, spawn("work", "w", talk=True))
        (skipped,) = await turn.run([named[action]])
        assert (skipped.is_error, skipped.result) == (False, SKIPPED)
        assert (await rt.handle("w", conversation="main")).state == "running"


async def test_P3_a_skip_is_an_ok_result_and_never_executes(clock: VirtualClock) -> None:
    async with opened(clock, [replace(work, run="skip")]) as (rt, turn):
        one_shot, spawned, _ = await turn.run([call("work"), spawn("work", "w"), wait_all("w")])
        assert (one_shot.is_error, one_shot.result) == (False, SKIPPED)
        assert SKIPPED in spawned.result
        info = await rt.handle("w", conversation="main")
        assert info.ok and info.started is None
    assert ran == []


async def test_P1_a_wrong_call_of_a_skipped_tool_is_still_wrong(clock: VirtualClock) -> None:
    async with opened(clock, [replace(work, run="skip")]) as (_, turn):
        (response,) = await turn.run([call("work", fail="yes")])
        assert response.is_error and "`fail`" in response.result


async def test_P1_result_modes_act_on_what_the_tool_said(clock: VirtualClock) -> None:
    async with opened(clock, [replace(work, result="skip")]) as (rt, turn):
        fine, failed = await turn.run([call("work"), call("work", fail=True)])
        assert not fine.is_error and failed.is_error  # a failure stays one
        *_, waited = await replies(turn, spawn("work", "w"), wait_all("w"))
        texts_shown = [fine.result, failed.result, waited["completed"][0]["result"]]
        assert all("secret" not in text for text in texts_shown)
        assert "secret" not in str((await rt.handle("w", conversation="main")).outcome)
    for mode in ("ask", "edit"):
        async with opened(clock, [replace(work, result=mode)]) as (_, turn):
            (denied,) = await turn.run([call("work")])
            assert denied.is_error and "secret" not in denied.result and '`result = "unattended"`' in denied.result
    assert len(ran) == 5  # the tool itself ran every time


@pytest.mark.parametrize("mode", ["skip", "ask"])
async def test_P1_S3_a_result_mode_does_not_hide_that_somebody_ended_the_call(clock: VirtualClock, mode: Any) -> None:
    async with opened(clock, [replace(work, result=mode)]) as (_, turn):
        await replies(turn, spawn("work", "w", talk=True))
        assert await reply(turn, abort("work", "w")) == {
            "id": "w",
            "state": "stopped",
            "result": "Aborted by the assistant.",
            "ended_by": "abort",
        }
