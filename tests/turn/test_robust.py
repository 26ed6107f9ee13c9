"""Things that must not leave a turn hanging, raising, or forgetting (C9, B1, T4, A6, Y2, O3, O5)."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import keephold
from keephold import Call, Question, Runtime, ToolCall
from keephold.testing import VirtualClock
from keephold.tools.base import ACTIONS as ALL
from keephold.tools.base import Invocation, Live, Sink, Tool


async def test_C9_a_runtime_that_raises_something_else_is_an_error_of_its_call(clock: VirtualClock) -> None:
    class Started:
        def __init__(self, sink: Sink) -> None:
            self._sink = sink

        def write(self, data: Any) -> None:
            raise LookupError("a bug")

        def end(self, grace: float) -> None:
            self._sink.stop(keephold.outcomes.Failure("over"))
            self._sink.released()

    class Foreign:
        def start(self, invocation: Invocation, sink: Sink) -> Live:
            return Started(sink)

    tool = Tool(name="foreign", runtime=Foreign(), actions=ALL)
    async with Runtime([tool], clock=clock) as rt, rt.turn() as turn:
        spawn = ToolCall("1", "foreign", {"action": "spawn", "id": "f"})
        apply = ToolCall("2", "foreign", {"action": "apply", "id": "f", "input": "x"})
        _, chained = await turn.run([spawn, apply])
        (alone,) = await turn.run([apply])
        assert chained.is_error and alone.is_error and "LookupError: a bug" in alone.result


async def test_A6_a_command_that_began_while_it_was_waited_for_is_known_to_read(tmp_path: Path) -> None:
    (tmp_path / "keephold.toml").write_text("""
[conversation.tools."*"]
source = "local"
run = "unattended"
scheduling = "serial"
[conversation.tools.first]
command = ["sleep", "0.3"]
spawn.stateful = true
[conversation.tools.cat]
command = ["cat"]
spawn = { stateful = true, stdin = true }
""")
    async with Runtime(config=tmp_path / "keephold.toml") as rt, rt.turn() as turn:
        *_, waited = await turn.run(
            [
                ToolCall("1", "first", {"action": "spawn", "id": "a"}),
                ToolCall("2", "cat", {"action": "spawn", "id": "b"}),
                ToolCall("3", "await", {"all": ["a", "b"], "timeout_secs": 30}),
            ]
        )
        assert json.loads(waited.result)["needs_input"] is True


async def test_S2_a_question_that_its_tool_gave_up_is_not_open_any_more(clock: VirtualClock) -> None:
    @keephold.tool(actions=ALL)
    async def asks(call: Call) -> str:
        try:
            async with asyncio.timeout(1):
                await call.ask(Question(id="first", text="First?", answer_type="Boolean"))
        except TimeoutError:
            return str(await call.ask(Question(id="second", text="Second?", answer_type="Text")))
        return "answered"

    async with Runtime([asks], clock=clock) as rt, rt.turn("m") as turn:
        await turn.run([ToolCall("1", "asks", {"action": "spawn", "id": "a"})])
        await clock.advance(2)
        assert (question := (await rt.handle("a", conversation="m")).question) is not None
        assert question.id == "second"
        (answered,) = await turn.run([ToolCall("2", "asks", {"action": "apply", "id": "a", "input": "yes"})])
        assert json.loads(answered.result)["result"] == "yes"


async def test_T4_whoever_ends_a_turn_twice_gets_the_same_ending(clock: VirtualClock) -> None:
    @keephold.tool(actions=ALL, on_turn_end="await")
    async def slow() -> str:
        await asyncio.sleep(5)
        return "done"

    async with Runtime([slow], clock=clock) as rt, rt.turn("m") as turn:
        await turn.run([ToolCall("1", "slow", {"action": "spawn", "id": "s"})])
        first, second = await asyncio.gather(turn.end(), turn.end())
        assert first is second and first.results[0]["result"] == "done"


async def test_T4_a_turn_that_was_never_entered_ends_nobody_elses(clock: VirtualClock) -> None:
    @keephold.tool(actions=ALL)
    async def waits() -> None:
        await asyncio.Event().wait()

    async with Runtime([waits], clock=clock) as rt, rt.turn("m") as turn:
        await turn.run([ToolCall("1", "waits", {"action": "spawn", "id": "w"})])
        with pytest.raises(keephold.KeepholdError, match="not open"):
            await rt.turn("m").end()
        assert (await rt.handle("w", conversation="m")).state == "running"


async def test_O3_results_at_the_end_of_a_turn_share_four_limits(clock: VirtualClock) -> None:
    @keephold.tool(actions=ALL, on_turn_end="await")
    async def much() -> str:
        await asyncio.sleep(1)
        return "x" * 10_000

    async with Runtime([much], clock=clock) as rt, rt.turn() as turn:
        await turn.run([ToolCall(str(n), "much", {"action": "spawn", "id": f"m{n}"}) for n in range(40)])
    assert turn.ending is not None
    assert sum(entry["result"].count("x") for entry in turn.ending.results) <= 4 * 16_384


async def test_O5_a_thread_that_emits_faster_than_the_loop_reads_waits() -> None:
    behind, go_on = threading.Event(), threading.Event()
    sent = 0

    @keephold.tool
    def floods(call: Call) -> str:
        nonlocal sent
        for _ in range(64):
            call.emit(b"x" * 262_144)
            sent += 262_144
        return "done"

    async with Runtime([floods]) as rt, rt.turn() as turn:
        running = asyncio.create_task(turn.run([ToolCall("1", "floods", {})]))
        await asyncio.sleep(0)
        while not sent:
            behind.wait(0.01)
        behind.wait(0.3)  # the loop stands still, as far as the thread can tell
        assert 0 < sent <= 2 * 1024 * 1024
        go_on.set()
        assert (await running)[0].result == "done"
        assert sent == 64 * 262_144


@pytest.mark.parametrize("calls", [[{"id": "1", "name": "x"}], ToolCall("1", "x", {})])
async def test_Y_what_is_no_list_of_calls_is_told_what_would_be(calls: Any, clock: VirtualClock) -> None:
    async with Runtime([], clock=clock) as rt, rt.turn() as turn:
        with pytest.raises(TypeError, match=r"list of keephold.ToolCall\(id, name, arguments\)"):
            await turn.run(calls)
