"""Every call that a client is told of has its own end, whatever its label is and whoever made it (X1, B1)."""

import json
from pathlib import Path
from typing import Any

from tests.acp.editor import Editor, editor, shown, statuses

AGENT = """
[agents.sub]
run = "unattended"

[conversation.tools.asking]
source = "local"
run = "ask"
command = ["sh", "-c", "echo hi"]
spawn.stateful = true
run_actions.fetch = "ask"
"""


def asked(person: Editor) -> list[str]:
    sent = [
        m["params"] for way, m in person.messages if way == "in" and m.get("method") == "session/request_permission"
    ]
    return [each["toolCall"]["toolCallId"] for each in sent]


def ends(person: Editor, session: str, since: int = 0) -> dict[str, tuple[str, str]]:
    """Of each call how it ended, and what it showed then."""
    calls = person.calls(session, since).values()
    return {each[0]["toolCallId"].partition(".")[2]: (statuses(each)[-1], shown(each[-1])) for each in calls}


async def again(person: Editor, session: str) -> dict[str, tuple[str, str]]:
    """The same, as it is told when the session is loaded."""
    await person.connection.close_session(session_id=session)
    since = len(person.messages)
    await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
    return ends(person, session, since)


async def test_P1_what_a_sub_agent_asks_for_is_about_the_call_that_is_shown(tmp_path: Path) -> None:
    steps: list[Any] = [
        {"calls": [["1", "asking", {"action": "spawn", "id": "b"}], ["2", "await", {"all": ["b"]}]]},
        {"calls": [["3", "asking", {"action": "fetch", "id": "b"}]]},
    ]
    async with editor(tmp_path, more=AGENT) as person:
        session = await person.new()
        assert await person.prompt(session, {"calls": [["1", "sub", {"prompt": json.dumps(steps)}]]}) == "end_turn"
        calls = {each[0]["toolCallId"]: each for each in person.calls(session).values()}
        spawn, fetch = (calls[id] for id in asked(person))
        assert spawn[0]["title"] == "sub: b (asking)"
        assert statuses(spawn) == ["pending", "in_progress", "completed"]
        assert statuses(fetch) == ["pending", "completed"] and shown(fetch[-1]) == "Allowed."
        assert {statuses(each)[-1] for each in calls.values()} == {"completed"}


async def test_B1_two_calls_of_one_label_are_two_calls(tmp_path: Path) -> None:
    calls = [["d", "look", {"path": "a"}], ["d", "fails", {}], ["d", "look", {"path": "b"}]]
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, {"calls": calls})
        told = ends(person, session)
        assert told == {
            "d": ("completed", "looked at a"),
            "d.2": ("failed", "it broke"),
            "d.3": ("completed", "looked at b"),
        }
        assert await again(person, session) == told


async def test_B1_a_label_that_comes_in_every_batch_is_another_call_each_time(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        spawn = {"action": "spawn", "id": "w", "file": str(tmp_path / "flag")}
        await person.prompt(
            session,
            {"calls": [["c", "waits", spawn]]},
            {"calls": [["c", "look", {"path": "a"}]]},
            {"calls": [["c", "nothing", {}]]},
            {"calls": [["c", "look", {"path": "b"}]]},
        )
        told = ends(person, session)
        assert [told["c.2"], told["c.4"]] == [("completed", "looked at a"), ("completed", "looked at b")]
        loaded = await again(person, session)
        assert {id: loaded[id] for id in ("c.2", "c.3", "c.4")} == {id: told[id] for id in ("c.2", "c.3", "c.4")}
        assert loaded["c"][0] == told["c"][0] == "in_progress"
        (tmp_path / "flag").touch()
        await person.until(lambda: "it is there" in shown(person.updates(session)[-1]))
        assert person.updates(session)[-1]["toolCallId"].endswith(".c")
