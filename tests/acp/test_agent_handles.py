"""Handles in an editor: of sub-agents, with open questions, many at once (X1, G2, Q3)."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from tests.acp.editor import ROOT, editor, script, shown, statuses

HELPER = """
[agents.helper]
description = "Helps."
run = "unattended"
on_turn_end = "await"
"""


async def test_G2_what_a_sub_agent_runs_is_shown_in_the_session_at_the_top(tmp_path: Path) -> None:
    async with editor(tmp_path, more=HELPER) as person:
        session = await person.new()
        inner = script({"calls": [["1", "asked", {"word": "below"}]]}, {"text": ["the result"]})
        spawn = {"action": "spawn", "id": "h", "prompt": inner}
        await person.prompt(
            session, {"calls": [["1", "helper", spawn], ["2", "await", {"all": ["h"]}]]}, {"text": ["thanks"]}
        )
        calls = {updates[0]["title"]: updates for updates in person.calls(session).values()}
        below = calls["helper: asked"]
        assert statuses(below) == ["pending", "in_progress", "completed"] and "ran below" in shown(below[-1])
        asked = [m["params"] for _, m in person.messages if m.get("method") == "session/request_permission"]
        assert [each["toolCall"]["toolCallId"] for each in asked] == [below[0]["toolCallId"]]
        assert asked[0]["sessionId"] == session
        (helper,) = (updates for title, updates in calls.items() if title.startswith("h: helper"))
        assert helper[0]["kind"] == "think" and statuses(helper) == ["pending", "in_progress", "completed"]
        assert "the result" in shown(helper[-1])
        assert person.text(session) == "thanks"


async def test_Q3_a_spawned_handle_that_asks_shows_its_question_until_it_is_answered(tmp_path: Path) -> None:
    spawned = '[conversation.tools.asks.spawn]\nactions = ["spawn", "fetch", "apply", "abort"]\n'
    async with editor(tmp_path, more=spawned) as person:
        session = await person.new()
        calls = [["1", "asks", {"action": "spawn", "id": "a", "kind": "text"}], ["2", "await", {"all": ["a"]}]]
        turn = asyncio.ensure_future(person.prompt(session, {"calls": calls}))

        def question() -> str:
            return "".join(shown(update) for update in person.calls(session).get("1", ()))

        await person.until(lambda: "keephold send" in question())
        assert "Which?" in question()
        words = question().partition("`keephold ")[2].partition("`")[0].replace("TEXT", "green").split()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "keephold", *words, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert await process.wait() == 0
        assert await turn == "end_turn"
        asks = person.calls(session)["1"]
        assert statuses(asks) == ["pending", "in_progress", "completed"]
        assert "answered 'green'" in shown(asks[-1]) and "Which?" not in shown(asks[-1])


async def test_P1_a_spawn_that_needs_permission_is_pending_until_it_is_given(tmp_path: Path) -> None:
    asking = '[conversation.tools.job2]\nsource = "python"\nfunction = "tests.acp.agents.playing:job"\n'
    async with editor(tmp_path, more=asking) as person:
        session = await person.new()
        seen: list[list[str]] = []

        def choose(_: Any) -> str:
            seen.append(statuses(person.calls(session)["1"]))
            return "allow_once"

        person.permission = choose
        await person.prompt(session, {"calls": [["1", "job2", {"action": "spawn", "id": "j"}]]})
        assert seen == [["pending"]]
        assert statuses(person.calls(session)["1"]) == ["pending", "in_progress"]


async def test_X1_many_sessions_at_once_lose_and_mix_up_nothing(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        sessions = [await person.new() for _ in range(40)]
        said = [f"{at} " for at in range(100)]
        ends = await asyncio.gather(*(person.prompt(session, {"text": said}) for session in sessions))
        assert set(ends) == {"end_turn"}
        assert all(person.text(session) == "".join(said) for session in sessions)
        assert sorted(each["sessionId"] for each in person.signals()) == sorted(sessions)
