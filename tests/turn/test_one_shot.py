"""Aborting (C7) and one-shot calls (C8): the end somebody wants, and the handle nobody sees."""

import asyncio
import json
from pathlib import Path

from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, abort, call, fetch, opened, replies, reply, settings, spawn, texts

import keephold
from keephold import Call, Question, Tool
from keephold.testing import VirtualClock


def command(name: str, script: str, extra: str = "") -> str:
    """A table of `keephold.toml` for a shell script."""
    quoted = json.dumps(["sh", "-c", script])
    return f'[conversation.tools.{name}]\nsource = "local"\nrun = "unattended"\ncommand = {quoted}\n{extra}\n'


async def test_C7_abort_replies_with_the_stopped_state_and_twice_is_harmless(clock: VirtualClock) -> None:
    ends: list[str] = []

    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.5)
            ends.append("cleaned up")
        return "never"

    async with opened(clock, [work]) as (_, turn):
        await replies(turn, spawn("work", "w"))
        await clock.advance(1)
        first, second = await replies(turn, abort("work", "w"), abort("work", "w"))
        third = await reply(turn, abort("work", "w"))
        assert first == second == third == await reply(turn, fetch("work", "w"))
        assert ends == ["cleaned up"]


async def test_C7_abort_of_what_ended_by_itself_replies_with_that_state(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        return "done"

    async with opened(clock, [work]) as (_, turn):
        await replies(turn, spawn("work", "w"))
        await clock.advance(1)
        assert await reply(turn, abort("work", "w")) == {"id": "w", "state": "stopped", "result": "done"}


async def test_C7_a_process_gets_SIGTERM_then_SIGKILL_after_the_grace(clock: VirtualClock, tmp_path: Path) -> None:
    spawned = "spawn = { stateful = true, abort_grace_ms = 300 }"
    polite = command("polite", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done", spawned)
    deaf = command("deaf", "trap '' TERM; echo up; while :; do sleep 0.01; done", spawned)
    async with opened(clock, [], config=settings(tmp_path, polite + deaf)) as (rt, turn):
        await replies(turn, spawn("polite", "polite"), spawn("deaf", "deaf"))
        await until(lambda: all(info.output_bytes for info in rt.live()))  # both have set their traps
        begun = clock.now()
        first, second = await replies(turn, abort("polite", "polite"), abort("deaf", "deaf"))
        assert clock.now() - begun >= 0.3
        assert [first["ended_by"], second["ended_by"]] == ["abort", "abort"]
        handles = {info.id: info for info in await rt.handles()}
        assert (handles["polite"].exit_code, handles["polite"].signal) == (3, None)
        assert (handles["deaf"].exit_code, handles["deaf"].signal) == (None, 9)
        kept = (await reply(turn, call("read_output", id="polite")))["content"]
        assert kept.startswith("up\n") and kept.endswith("bye\n")


async def test_C8_the_model_sees_nothing_of_the_handle_behind_a_one_shot_call(clock: VirtualClock) -> None:
    during: list[int] = []

    @keephold.tool(actions=TALKING)
    async def work(call: Call) -> str:
        call.emit("progress that nobody asked for\n")
        during.append(len(await call.handles.list()))
        await asyncio.sleep(30)
        return "the result"

    async with opened(clock, [work]) as (rt, turn):
        begun = clock.now()
        assert await texts(turn, call("work")) == ["the result"]
        assert clock.now() - begun == 30  # waits to the end, however long it takes to settle
        assert during == [0] and await rt.handles() == []


async def test_C8_input_is_closed_for_a_one_shot_call(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def reads(call: Call) -> str:
        try:
            return str(await call.input())
        except EOFError:
            return "nobody there"

    async with opened(clock, [reads]) as (_, turn):
        assert await texts(turn, call("reads")) == ["nobody there"]


ASKING = """
[conversation.tools.asks]
source = "local"
run = "unattended"
command = ["python3", "-c", '''
import json, os
answers = json.loads(os.environ["KEEPHOLD_CALL"])["tool"]["answers"]
open("runs", "a").write("x")
want = [name for name in NAMES if name not in answers]
question = {"id": want[0], "text": "?", "answer_type": "Boolean"} if want else None
print(json.dumps({"type": "needs_input", "question": question}) if want else json.dumps(answers))
''']
"""


async def test_C8_a_one_shot_command_is_run_again_with_all_answers_so_far(clock: VirtualClock, tmp_path: Path) -> None:
    fixed = "".join(f"[conversation.tools.asks.questions.{name}]\nanswer = true\n" for name in ("a", "b"))
    config = settings(tmp_path, ASKING.replace("NAMES", "['a', 'b']") + fixed)
    async with opened(clock, [], config=config) as (_, turn):
        assert json.loads((await texts(turn, call("asks")))[0]) == {"a": True, "b": True}
        assert (tmp_path / "runs").read_text() == "xxx"


async def test_C8_more_than_eight_rounds_end_the_call_with_an_error(clock: VirtualClock, tmp_path: Path) -> None:
    names = [f"q{number}" for number in range(20)]
    fixed = "".join(f"[conversation.tools.asks.questions.{name}]\nanswer = true\n" for name in names)
    config = settings(tmp_path, ASKING.replace("NAMES", repr(names)) + fixed)
    async with opened(clock, [], config=config) as (_, turn):
        (response,) = await turn.run([call("asks")])
        assert response.is_error and "8 times" in response.result
        assert (tmp_path / "runs").read_text() == "x" * 9


async def test_C8_questions_of_a_one_shot_function_are_answered_on_the_way(clock: VirtualClock, tmp_path: Path) -> None:
    @keephold.tool
    async def asks(call: Call) -> str:
        return str(await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean", default=True)))

    tools: list[Tool] = [asks]
    config = settings(tmp_path, '[conversation]\ndetached = "defaults"\n')
    async with opened(clock, tools, config=config) as (_, turn):
        assert await texts(turn, call("asks")) == ["True"]
