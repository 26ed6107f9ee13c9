"""The assistant is asked about what still runs at the end of a turn (T2): wait, or abort; nonsense counts as abort."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.turn.assistant import Assistant, saying, work
from tests.turn.calls import TALKING, fetch, spawn
from tests.turn.puppets import STORES, Puppets, heard, in_state, nothing, over, start, store_url

from keephold import Runtime
from keephold.testing import VirtualClock
from keephold.turn.ending import Ending
from keephold.turn.inquiry import Inquiry

both = pytest.mark.parametrize("store", STORES)


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


async def test_T2_it_is_asked_once_with_what_it_needs_to_choose(clock: VirtualClock) -> None:
    assistant = Assistant("abort")
    serial = replace(work, name="serial", scheduling="serial")
    async with Runtime([work, serial], clock=clock, inquiry=assistant) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w", says="x" * 399 + "é" + "y" * 399), spawn("serial", "s")])
        await clock.advance(7.9)
        await turn.run([spawn("serial", "queued")])
        await clock.advance(2)
        await turn.end()
        (inquiry,) = assistant.asked
        listed = [dict(each) for each in inquiry.handles]
        assert [int(each.pop("elapsed_secs")) for each in listed] == [9, 9, 2]
        assert listed == [
            {"id": "w", "tool": "work", "state": "running", "output_preview": "é" + "y" * 399},
            {"id": "s", "tool": "serial", "state": "running", "output_preview": ""},
            {"id": "queued", "tool": "serial", "state": "pending", "output_preview": ""},
        ]
        assert json.loads(inquiry.text[inquiry.text.index("{") :]) == {"handles": list(inquiry.handles)}
        assert (inquiry.id, inquiry.purpose) == (f"{turn.id}.end.1", "turn_end")
        assert (inquiry.conversation, inquiry.turn, inquiry.tool) == ("main", turn.id, None)
        item = inquiry.schema["properties"]["handles"]["items"]["properties"]
        assert item["action"]["enum"] == ["wait", "abort"]


@pytest.mark.parametrize("text", ["a" * 5000, "é" * 5000, "\n" * 5000, "🐟" * 401, "", "short\n", "x\n" * 3000])
async def test_T2_the_preview_is_the_last_400_characters(clock: VirtualClock, text: str) -> None:
    assistant = Assistant("abort")
    async with Runtime([work], clock=clock, inquiry=assistant) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w", says=text)])
        await turn.end()
        assert assistant.asked[0].handles[0]["output_preview"] == text[-400:]


async def test_T2_the_preview_of_a_command_is_text(tmp_path: Path) -> None:
    """Whatever bytes it prints, also if the last 400 characters begin in the middle of one (K4)."""
    assistant = Assistant("abort")
    noise = tmp_path / "noise"
    noise.write_bytes(b"\x1b[31m\xff\xfe" + "é".encode() * 3000 + b"\x1b[0mend\xc3")
    config = tmp_path / "keephold.toml"
    config.write_text(
        f"""
        [conversation.tools.noise]
        source = "local"
        run = "unattended"
        command = ["sh", "-c", "cat {noise}; exec sleep 300"]
        spawn.stateful = true
        """
    )
    async with Runtime(config=config, inquiry=assistant) as rt, rt.turn("main") as turn:
        await turn.run([spawn("noise", "n")])
        await _until(lambda: rt.registry.find("n", "main").info().output_bytes >= noise.stat().st_size)
        await turn.end()
    preview = assistant.asked[0].handles[0]["output_preview"]
    assert len(preview) <= 400 and "é" * 300 in preview and "\x1b" not in preview
    assert preview.rstrip("\N{REPLACEMENT CHARACTER}").endswith("end")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_T2_what_it_waits_for_ends_and_it_speaks_again(clock: VirtualClock) -> None:
    assistant = Assistant("wait")
    async with Runtime([work], clock=clock, inquiry=assistant) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w", secs=60)])
        begun = clock.now()
        ending = await turn.end()
        assert clock.now() - begun == 60
        result = {"id": "w", "state": "stopped", "result": "done"}
        assert ending.results == (result,) == ending.model and ending.kept == ()
        assert ending.again and ending.aborted == "" and len(rt.live()) == 0
        words, _, told = ending.message.partition("\n")
        assert "not from the user" in words
        assert json.loads(told) == {"completed": [result], "pending": []}  # A3's object
        (done,) = await turn.run([fetch("work", "w")])  # the turn goes on
        assert "done" in done.result and done.notifications == ()
        last = await turn.end()
        assert not last.again and last.message == "" and last.results == ()
        assert turn.ending == last and len(assistant.asked) == 1


async def test_T2_what_it_aborts_ends_at_once_and_it_need_not_speak_again(clock: VirtualClock) -> None:
    async with Runtime([work, nothing], clock=clock, inquiry=Assistant("abort")) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", "w")])
            begun = clock.now()
            ending = await turn.end()
            assert clock.now() == begun and not ending.again and ending.message == ""
            assert ending.results == (
                {"id": "w", "state": "stopped", "result": "Aborted at the end of the turn.", "ended_by": "turn_end"},
            )
            assert ending.aborted == ""
        async with rt.turn("main") as turn:
            assert await heard(turn) == []  # it wanted that


async def test_T2_some_wait_and_some_abort(clock: VirtualClock) -> None:
    """The message holds what they came to, all of them."""
    choice = {"handles": [{"id": "b", "action": "wait"}, {"id": "a", "action": "abort"}]}
    async with Runtime([work], clock=clock, inquiry=saying(choice)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "a", secs=60), spawn("work", "b", secs=60)])
        ending = await turn.end()
        assert [(each["id"], each["result"]) for each in ending.results] == [
            ("a", "Aborted at the end of the turn."),
            ("b", "done"),
        ]
        assert json.loads(ending.message.partition("\n")[2])["completed"] == list(ending.results)


async def test_T2_what_it_waits_for_too_long_is_aborted(clock: VirtualClock) -> None:
    slow = replace(work, spawn=replace(work.spawn, turn_end_timeout_secs=30))
    async with Runtime([slow], clock=clock, inquiry=Assistant("wait")) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w")])
        begun = clock.now()
        ending = await turn.end()
        assert clock.now() - begun == 30
        assert ending.again and ending.results[0]["ended_by"] == "turn_end"


async def test_T2_it_speaks_three_times_at_most(clock: VirtualClock) -> None:
    """Each time it starts something new and wants to wait for it."""
    assistant = Assistant("wait")
    async with Runtime([work], clock=clock, inquiry=assistant) as rt:
        async with rt.turn("main") as turn:
            rounds: list[Ending] = []
            while turn.ending is None:
                await turn.run([spawn("work", f"w{len(rounds)}", secs=60)])
                rounds.append(await turn.end())
        assert [ending.again for ending in rounds] == [True, True, False]
        assert [ending.results[0]["result"] for ending in rounds] == ["done"] * 3
        assert [inquiry.id for inquiry in assistant.asked] == [f"{turn.id}.end.{n}" for n in (1, 2, 3)]
        assert rt.live() == []


async def test_T2_nobody_is_asked_about_nothing(clock: VirtualClock) -> None:
    assistant = Assistant()
    kept, ended = (replace(work, name=n, spawn=replace(work.spawn, on_turn_end=n)) for n in ("keep", "abort"))
    async with Runtime([work, kept, ended], clock=clock, inquiry=assistant) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w", secs=1), spawn("keep", "k"), spawn("abort", "a")])
        await clock.advance(2)
        await turn.end()
    assert assistant.asked == []


# What happens while it is asked


@pytest.mark.parametrize("action", ["wait", "abort"])
async def test_T2_one_that_finishes_while_it_is_asked_about_keeps_its_result(puppets: Puppets, action: str) -> None:
    async def finish(inquiry: Inquiry) -> None:
        puppets.ends("a")
        await over(rt, "a")

    tools, assistant = [puppets.tool(), nothing], Assistant(action, finish)
    async with Runtime(tools, inquiry=assistant) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        ending = await turn.end()
        assert ending.results == ({"id": "a", "state": "stopped", "result": "done"},)
        assert ending.aborted == ""


async def test_T2_one_that_finishes_while_the_assistant_talks_nonsense_is_not_called_aborted(puppets: Puppets) -> None:
    async def inquire(inquiry: Inquiry) -> Any:
        puppets.ends("a")
        await over(rt, "a")
        return "nonsense"

    async with Runtime([puppets.tool(), nothing], inquiry=inquire) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"), start("b"))
            ending = await turn.end()
        assert "`b`" in ending.aborted and "`a`" not in ending.aborted


@pytest.mark.parametrize("how", ["reads", "asks"])
async def test_A6_one_that_comes_to_wait_for_the_caller_is_not_waited_for(puppets: Puppets, how: str) -> None:
    """The assistant has chosen to wait, but it is the only one who could make it go on."""

    async def block(inquiry: Inquiry) -> None:
        (puppets.reads if how == "reads" else puppets.asks)("a")
        await asyncio.sleep(0)

    tool = puppets.tool(actions=TALKING)
    async with Runtime([tool, nothing], inquiry=Assistant("wait", block)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        async with asyncio.timeout(PATIENCE):  # its own patience is 300 s
            ending = await turn.end()
        assert ending.results[0]["ended_by"] == "turn_end"


@pytest.mark.parametrize("how", ["reads", "asks"])
async def test_A6_what_waits_for_the_caller_is_aborted_at_once_and_nobody_is_asked(puppets: Puppets, how: str) -> None:
    assistant = Assistant("wait")
    async with Runtime([puppets.tool(actions=TALKING), nothing], inquiry=assistant) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        (puppets.reads if how == "reads" else puppets.asks)("a")
        if how == "asks":
            await in_state(rt, "a", "waiting")
        else:
            await _until(lambda: rt.registry.find("a", "main").reading)
        ending = await turn.end()
        assert ending.results[0]["ended_by"] == "turn_end" and ending.aborted == ""
    assert assistant.asked == []


@both
async def test_Q6_request_and_answer_are_recorded(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path), inquiry=Assistant("abort")) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"))
            await turn.end()
        (row,) = await rt.registry.store.inquiries("main")
        assert (row.id, row.turn, row.error) == (f"{turn.id}.end.1", turn.id, None)
        assert row.answer == {"handles": [{"id": "a", "action": "abort"}]}
        assert row.request["handles"][0]["id"] == "a"


async def test_T2_the_tools_own_settings_say_which_model_is_asked(clock: VirtualClock) -> None:
    assistant = Assistant("abort")
    own = replace(work, name="own", spawn=replace(work.spawn, assistant={"model": "small"}))
    async with Runtime([work, own], clock=clock, inquiry=assistant) as rt:
        for tool in ("work", "own"):
            async with rt.turn("main") as turn:
                await turn.run([spawn(tool, "w")])
    assert [inquiry.assistant for inquiry in assistant.asked] == [{}, {"model": "small"}]
