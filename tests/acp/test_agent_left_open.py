"""What a person cannot be asked now, or at all, stays open and holds up nothing else (Q2, Q5, P1, X1)."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.acp.editor import ROOT, Editor, editor, shown, statuses

ASK = {"calls": [["1", "asked", {"word": "hello"}]]}


def wonders(kind: str) -> dict[str, Any]:
    return {"calls": [["w", "wonders", {"action": "spawn", "id": "w", "kind": kind}]]}


def requests(person: Editor) -> list[dict[str, Any]]:
    return [m for way, m in person.messages if way == "in" and m.get("method") == "session/request_permission"]


def said_of(person: Editor, session: str, since: int = 0) -> str:
    return "".join(shown(update) for update in person.calls(session, since).get("w", ()))


async def send(note: str, *more: str) -> None:
    words = note.partition("`keephold ")[2].partition("`")[0].replace("TEXT", "green").split()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "keephold", *words, *more, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert await process.wait() == 0


@pytest.mark.parametrize("kind", ["text", "secret"])
async def test_Q5_a_question_that_the_client_cannot_ask_keeps_nothing_else_from_being_asked(
    tmp_path: Path, kind: str
) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, wonders(kind))
        await person.until(lambda: "keephold send" in said_of(person, session))
        assert await person.prompt(session, ASK) == "end_turn"
        assert len(requests(person)) == 1 and "ran hello" in shown(person.calls(session)["1"][-1])
        assert statuses(person.calls(session)["w"])[-1] == "in_progress"


async def test_Q2_a_question_that_was_left_open_is_answered_elsewhere(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, wonders("text"))
        await person.until(lambda: "keephold send" in said_of(person, session))
        await send(said_of(person, session))
        await person.until(lambda: "completed" in statuses(person.calls(session)["w"]))
        assert "answered 'green'" in shown(person.calls(session)["w"][-1])


async def test_P1_what_is_asked_when_a_session_is_closed_is_taken_back_and_asked_when_it_is_opened(
    tmp_path: Path,
) -> None:
    async with editor(tmp_path) as person:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        person.permission = lambda _: never
        session = await person.new()
        await person.prompt(session, wonders("boolean"))
        await person.until(lambda: requests(person))
        await person.connection.close_session(session_id=session)
        (first,) = requests(person)
        taken_back = [
            m["params"] for way, m in person.messages if way == "in" and m.get("method") == "$/cancel_request"
        ]
        assert taken_back == [{"requestId": first["id"]}]
        person.permission = lambda _: "yes"
        since = len(person.messages)
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        await person.until(lambda: "answered True" in said_of(person, session, since))
        assert len(requests(person)) == 2
        person.permission = lambda _: "allow_once"
        assert await person.prompt(session, ASK) == "end_turn"
        assert len(requests(person)) == 3
        never.cancel()


async def test_Q2_how_a_question_can_be_answered_is_said_again_when_its_session_is_loaded(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, wonders("text"))
        await person.until(lambda: "keephold send" in said_of(person, session))
        await person.connection.close_session(session_id=session)
        since = len(person.messages)
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        await person.until(lambda: "keephold send" in said_of(person, session, since))
        assert await person.prompt(session, ASK) == "end_turn"


async def test_Q5_a_call_has_its_own_title_again_when_its_question_is_withdrawn(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        person.permission = lambda _: never
        session = await person.new()
        turn = asyncio.ensure_future(person.prompt(session, {"calls": [["1", "asks", {"kind": "boolean"}]]}))
        await person.until(lambda: requests(person))
        since = len(person.messages)
        await person.connection.cancel(session)
        assert await turn == "cancelled"
        titles = [update["title"] for update in person.updates(session, since) if "title" in update]
        assert titles == ["asks kind=boolean"]
        never.cancel()


AGENT = """
[agents.sub]
run = "unattended"
on_turn_end = "keep"
"""


async def test_G2_what_a_sub_agent_runs_is_shown_and_asked_about_when_its_session_is_loaded(tmp_path: Path) -> None:
    async with editor(tmp_path, more=AGENT) as person:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        person.permission = lambda _: never
        session = await person.new()
        inner = '[{"calls": [["1", "asked", {"word": "below"}]]}]'
        await person.prompt(session, {"calls": [["s", "sub", {"action": "spawn", "id": "s", "prompt": inner}]]})
        await person.until(lambda: requests(person))
        await person.connection.close_session(session_id=session)
        person.permission = lambda _: "allow_once"
        since = len(person.messages)
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        await person.until(lambda: "completed" in statuses(person.calls(session, since)["s"]))
        calls = {updates[0]["title"]: updates for updates in person.calls(session, since).values()}
        below = calls["sub: asked"]
        assert requests(person)[-1]["params"]["toolCall"]["toolCallId"] == below[0]["toolCallId"]
        assert statuses(below) == ["pending", "in_progress", "completed"] and "ran below" in shown(below[-1])
        never.cancel()
