"""Stateful tools with shared verbs (G5): `spawn` of a tool; `handle_fetch`, `handle_apply`, `handle_abort` of all."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import STATEFUL, TALKING, call, opened, replies, reply, texts, wait_all

import keephold
from keephold import Call, ConfigError, Question, Runtime, ToolCall, Turn
from keephold.testing import VirtualClock
from keephold.tools.toolbox import Selection


@keephold.tool(actions=TALKING)
async def echo(call: Call, times: int = 2) -> str:
    """Return the lines it was sent."""
    lines = [str(await call.input()) for _ in range(times)]
    return " ".join(lines)


@keephold.tool(actions=TALKING)
async def sure(call: Call) -> str:
    return f"answered {await call.ask(Question('sure', 'Sure?', bool))}"


@keephold.tool(actions=STATEFUL)
async def deaf() -> None:
    await asyncio.Event().wait()


async def refused(turn: Turn, one: ToolCall) -> str:
    (response,) = await turn.run([one])
    assert response.is_error, response
    return response.result


async def test_G5_a_spawn_a_fetch_an_apply_and_an_await_in_one_batch(clock: VirtualClock) -> None:
    """Calls that name a handle run after its spawn, in either form (B3)."""
    async with opened(clock, [echo]) as (_, turn):
        batch = [
            call("handle_apply", id="e", input="one"),
            call("handle_fetch", id="e"),
            call("echo", spawn="e"),
            call("echo", action="apply", id="e", input="two"),
            wait_all("e"),
        ]
        found = await replies(turn, *batch)
    assert [each.get("state") for each in found[:4]] == ["running", "running", "running", "stopped"]
    assert found[4]["completed"][0]["result"] == "one two"


async def test_G5_without_spawn_or_with_null_a_call_is_one_shot(clock: VirtualClock) -> None:
    async with opened(clock, [echo]) as (_, turn):
        assert await texts(turn, call("echo", times=0), call("echo", times=0, spawn=None)) == ["", ""]


async def test_G5_an_apply_without_input_reads_and_sends_nothing(clock: VirtualClock) -> None:
    async with opened(clock, [echo]) as (_, turn):
        await reply(turn, call("echo", spawn="e", times=1))
        for nothing in ({}, {"input": None}, {"input": None, "keys": None, "size": None, "eof": False}):
            assert (await reply(turn, call("handle_apply", id="e", **nothing)))["state"] == "running"
        await reply(turn, call("handle_apply", id="e", input="word"))
        assert (await reply(turn, call("handle_fetch", id="e")))["result"] == "word"


async def test_G5_eof_closes_the_input_after_what_is_sent_with_it() -> None:
    cat = keephold.command("cat", stdin=True, actions=TALKING)
    async with Runtime(tools=[cat]) as rt, rt.turn("main") as turn:
        await reply(turn, call("cat", spawn="both"))
        await reply(turn, call("cat", spawn="alone"))
        shown = [
            await reply(turn, call("handle_apply", id="both", input="last\n", eof=True)),
            await reply(turn, call("handle_apply", id="alone", eof=True)),
            *(await reply(turn, wait_all("both", "alone")))["completed"],
        ]
    texts = {
        id: "".join(each.get("content") or each.get("result") or "" for each in shown if each["id"] == id)
        for id in ("both", "alone")
    }
    assert texts == {"both": "last\n", "alone": ""}


async def test_G5_handle_apply_answers_a_question(clock: VirtualClock) -> None:
    async with opened(clock, [sure]) as (_, turn):
        assert (await reply(turn, call("sure", spawn="s")))["state"] == "waiting"
        assert "must be" in await refused(turn, call("handle_apply", id="s", input="perhaps"))
        await reply(turn, call("handle_apply", id="s", input="true"))
        assert (await reply(turn, call("handle_fetch", id="s")))["result"] == "answered True"


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (call("handle_apply", id="d", input="x"), "has no apply; it takes `handle_fetch`, `handle_abort`"),
        (call("handle_apply", id="e", keys=["ENTER"]), "takes no `keys`: only terminals do"),
        (call("handle_apply", id="e", input="x", eof="no"), "`eof` must be true or false, not string"),
        (call("handle_apply", input="x"), "needs `id`"),
        (call("handle_abort", id="nobody"), "nobody"),
        (call("echo", spawn="x", action="fetch", id="e"), "give `spawn` or `action`, not both"),
        (call("echo", spawn="bad\nid"), "id"),
    ],
)
async def test_G5_a_wrong_call_is_refused_and_changes_nothing(clock: VirtualClock, one: ToolCall, why: str) -> None:
    async with opened(clock, [echo, deaf]) as (_, turn):
        await replies(turn, call("echo", spawn="e"), call("deaf", spawn="d"))
        assert why in await refused(turn, one)
        assert {handle.id: handle.state for handle in await turn.handles()} == {"e": "running", "d": "running"}


async def test_G5_fetch_of_any_handle_takes_the_view_of_terminals(clock: VirtualClock) -> None:
    async with opened(clock, [echo]) as (_, turn):
        await reply(turn, call("echo", spawn="e"))
        assert (await reply(turn, call("handle_fetch", id="e", view="screen")))["state"] == "running"


async def test_P1_run_actions_of_the_handles_tool_apply_to_the_shared_verbs(clock: VirtualClock) -> None:
    guarded = keephold.tool(actions=TALKING, name="guarded", run_actions={"apply": "skip"})(echo.runtime.function)  # type: ignore[attr-defined]
    async with opened(clock, [guarded]) as (_, turn):
        await reply(turn, call("guarded", spawn="g"))
        assert await texts(turn, call("handle_apply", id="g", input="x")) == ["Tool skipped by user."]


async def test_B2_an_id_spawned_twice_rejects_the_batch_in_either_form(clock: VirtualClock) -> None:
    async with opened(clock, [echo]) as (_, turn):
        answers = await turn.run([call("echo", spawn="e"), call("echo", action="spawn", id="e")])
        assert all("spawned twice" in each.result for each in answers)


def test_G5_the_names_are_reserved() -> None:
    with pytest.raises(ConfigError, match="begin with `handle_`"):
        Runtime(tools=[keephold.tool(name="handle_fetch")(lambda: "")])
    with pytest.raises(ConfigError, match="parameter `spawn` has a name"):

        @keephold.tool(actions=STATEFUL)
        async def late(spawn: str) -> None: ...

        Runtime(tools=[late])


def test_G5_shared_verbs_are_shown_by_default_except_in_the_canonical_form() -> None:
    @keephold.tool
    async def plain(word: str) -> str:
        return word

    assert "handle_fetch" not in names(Runtime(tools=[plain]), "generic")
    assert "handle_apply" not in names(Runtime(tools=[deaf]), "generic")
    rt = Runtime(tools=[echo, plain])
    assert {"handle_fetch", "handle_apply", "handle_abort"} <= names(rt, "openai-strict")
    assert not any(name.startswith("handle_") for name in names(rt, "canonical"))
    shown = {each["name"]: each["parameters"]["properties"] for each in rt.tools()}
    assert list(shown["echo"]) == ["times", "spawn"] and list(shown["plain"]) == ["word"]


@pytest.mark.parametrize("actions", ["shared", "per_tool"])
def test_G5_a_setting_chooses_for_every_dialect(tmp_path: Path, actions: str) -> None:
    (tmp_path / "keephold.toml").write_text(f'[conversation]\nactions = "{actions}"\n')
    rt = Runtime(tools=[echo], config=tmp_path / "keephold.toml")
    for dialect in ("canonical", "gemini"):
        assert ("handle_apply" in names(rt, dialect)) == (actions == "shared")


async def test_K10_handle_tools_are_there_only_beside_a_stateful_tool(clock: VirtualClock) -> None:
    async with opened(clock, [keephold.tool(name="plain")(lambda: "")]) as (rt, turn):
        assert "unknown tool" in await refused(turn, call("handle_fetch", id="x"))
        assert [each["name"] for each in Selection(rt.toolbox, ("plain",)).listed("generic")] == [
            "plain",
            "read_output",
        ]


def names(rt: Runtime, dialect: Any) -> set[str]:
    return {each["name"] for each in json.loads(json.dumps(rt.tools(dialect=dialect)))}
