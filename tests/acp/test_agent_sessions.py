"""Sessions that are found again: listed, loaded, resumed, after a crash (X1, G1)."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import acp
import pytest
from tests.acp.editor import editor, shown, statuses

TURN = (
    {"think": "hm", "text": ["first ", "words"], "calls": [["1", "look", {"path": "a"}], ["2", "fails", {}]]},
    {"text": ["last words"]},
)


async def test_X1_load_shows_what_was_said_and_never_that_a_turn_was_complete(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, *TURN)
        told, calls = person.text(session), person.calls(session)
    async with editor(tmp_path) as person:
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        updates = person.updates(session)
        assert [update["sessionUpdate"] for update in updates[:3]] == [
            "user_message_chunk",
            "agent_thought_chunk",
            "agent_message_chunk",
        ]
        assert person.text(session) == told == "first wordslast words"
        again = person.calls(session)
        assert [again[id][0]["toolCallId"] for id in again] == [calls[id][0]["toolCallId"] for id in calls]
        assert [statuses(again[id])[-1] for id in "12"] == ["completed", "failed"]
        assert shown(again["1"][-1]) == "looked at a" and again["1"][0]["title"] == calls["1"][0]["title"]
        assert person.signals() == [] and all("_meta" not in update for update in updates)
        assert await person.prompt(session, {"text": ["and on"]}) == "end_turn"


async def test_X1_resume_shows_nothing_and_goes_on(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, *TURN)
    async with editor(tmp_path) as person:
        with pytest.raises(acp.RequestError, match="not open"):
            await person.prompt(session, {"text": ["too soon"]})
        await person.connection.resume_session(cwd="/tmp", session_id=session, mcp_servers=[])
        assert person.updates(session) == []
        assert await person.prompt(session, {"text": ["and on"]}) == "end_turn"
        kinds = {update["sessionUpdate"] for update in person.updates(session)}
        assert kinds == {"agent_message_chunk"}  # its title is known


@pytest.mark.parametrize("how", ["load", "resume"])
async def test_X1_a_kept_handle_is_found_again_and_its_end_is_told(tmp_path: Path, how: str) -> None:
    flag = tmp_path / "flag"
    async with editor(tmp_path) as person:
        session = await person.new()
        spawn = {"action": "spawn", "id": "w", "file": str(flag)}
        await person.prompt(session, {"calls": [["1", "waits", spawn]]})
        await person.connection.close_session(session_id=session)
        since = len(person.messages)
        if how == "load":
            await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        else:
            await person.connection.resume_session(cwd="/tmp", session_id=session, mcp_servers=[])
        flag.touch()
        await person.until(lambda: "completed" in statuses(person.calls(session, since)["1"]))
        waits = person.calls(session, since)["1"]
        assert statuses(waits) == ["pending", "in_progress", "completed"] and "it is there" in shown(waits[-1])
        assert waits[-1]["_meta"] == {"keephold/background": True}


async def test_X1_sessions_are_listed_by_directory_newest_first(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        here = [await person.new("/tmp/here") for _ in range(2)]
        other = await person.new("/tmp/other")
        for session in (*here, other):
            await person.prompt(session, {"text": ["hi"]})
        silent = await person.new("/tmp/here")
        listed = await person.connection.list_sessions(cwd="/tmp/here")
        assert [each.session_id for each in listed.sessions] == here[::-1]
        assert all(each.title and each.title.startswith("[{") and each.updated_at for each in listed.sessions)
        everything = await person.connection.list_sessions()
        assert [each.session_id for each in everything.sessions] == [other, *here[::-1]]
        assert silent not in str(everything)
        await person.connection._conn.send_request("session/delete", {"sessionId": here[0]})
        left = await person.connection.list_sessions(cwd="/tmp/here")
        assert [each.session_id for each in left.sessions] == [here[1]]
        with pytest.raises(acp.RequestError, match="no session"):
            await person.connection.load_session(cwd="/tmp", session_id=here[0], mcp_servers=[])


async def test_X1_pages_of_sessions(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        made = [await person.new() for _ in range(55)]
        await asyncio.gather(*(person.prompt(session, {"text": ["hi"]}) for session in made))
        first = await person.connection.list_sessions()
        assert first.next_cursor is not None and len(first.sessions) == 50
        rest = await person.connection.list_sessions(cursor=first.next_cursor)
        assert {each.session_id for each in (*first.sessions, *rest.sessions)} == set(made)
        with pytest.raises(acp.RequestError, match="cursor"):
            await person.connection.list_sessions(cursor="nonsense")


async def test_X1_a_closed_session_ends_its_turn_and_can_be_loaded_again(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        turn = asyncio.ensure_future(person.prompt(session, {"text": ["so far"], "hang": True}))
        await person.until(lambda: person.text(session) == "so far")
        await person.connection.close_session(session_id=session)
        assert await turn == "cancelled"
        with pytest.raises(acp.RequestError, match="not open"):
            await person.prompt(session, {"text": ["no"]})
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        assert await person.prompt(session, {"text": ["and on"]}) == "end_turn"


async def test_X1_what_cannot_be_a_session_is_refused(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        with pytest.raises(acp.RequestError, match="absolute"):
            await person.new("here")
        server = acp.schema.SseMcpServer(type="sse", name="other", url="http://127.0.0.1:1/", headers=[])
        with pytest.raises(acp.RequestError, match="there are stdio and http"):
            await person.connection.new_session(cwd="/tmp", mcp_servers=[server])
        with pytest.raises(acp.RequestError, match="no session"):
            await person.connection.load_session(cwd="/tmp", session_id="s-none", mcp_servers=[])
        with pytest.raises(acp.RequestError, match="not found"):
            await person.connection._conn.send_request("session/nonsense", {})


async def test_X1_mcp_servers_that_an_editor_brings_are_connected_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keephold", "mcp", "--store", "memory:"]
    (tmp_path / "theirs").mkdir()
    theirs = tmp_path / "theirs" / "keephold.toml"
    theirs.write_text('[conversation.tools.greet]\nsource = "local"\nrun = "unattended"\ncommand = ["echo", "hello"]\n')
    server = acp.schema.McpServerStdio(
        name="an editor's", command=command[0], args=[*command[1:], "--config", str(theirs)], env=[]
    )
    other = acp.schema.McpServerStdio(name="an editor's", command="no-such-program", args=[], env=[])
    async with editor(tmp_path) as person:
        for _ in range(2):
            made = await person.connection.new_session(cwd="/tmp", mcp_servers=[server])
            calls: list[Any] = [("c", "greet", {})]
            assert await person.prompt(made.session_id, {"calls": calls}) == "end_turn"
            (updates,) = person.calls(made.session_id).values()
            assert statuses(updates)[-1] == "completed" and "hello" in shown(updates[-1])
        made = await person.connection.new_session(cwd="/tmp", mcp_servers=[other])  # of another project
        assert await person.prompt(made.session_id, {"calls": [("c", "greet", {})]}) == "end_turn"


async def test_G1_a_killed_agent_is_loaded_and_goes_on_in_the_middle_of_its_batch(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    calls = [
        ["1", "look", {"path": "a"}],
        ["2", "hangs", {}],
        ["3", "waits", {"action": "spawn", "id": "w", "file": str(flag)}],
    ]
    async with editor(tmp_path) as person:
        session = await person.new()
        turn = asyncio.ensure_future(person.prompt(session, {"text": ["begun"], "calls": calls}))
        await person.until(lambda: "hanging" in str(person.calls(session).get("2")))
        await person.until(lambda: "looked" in str(person.calls(session)["1"]))
        before = person.calls(session)
        person.process.send_signal(signal.SIGKILL)
        await asyncio.wait([turn])
        assert turn.exception() is not None
    async with editor(tmp_path) as person:
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        assert person.text(session) == "begun"
        again = person.calls(session)
        assert {id: updates[0]["toolCallId"] for id, updates in again.items()} == {
            id: updates[0]["toolCallId"] for id, updates in before.items()
        }
        assert [statuses(again[id]) for id in "123"] == [["pending"]] * 3
        assert await person.prompt(session, {"text": ["after all"]}) == "end_turn"
        ends = {id: updates[-1] for id, updates in person.calls(session).items()}
        assert ends["1"]["status"] == "completed" and shown(ends["1"]) == "looked at a"
        assert ends["2"]["status"] == "failed" and ends["3"]["status"] == "failed"  # on_crash = "fail"
        assert [each["stopReason"] for each in person.signals()] == ["end_turn"]
        assert person.text(session).endswith("after all")


async def test_B1_a_turn_that_goes_on_after_a_crash_uses_no_id_of_a_call_again(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        turn = asyncio.ensure_future(person.prompt(session, {"calls": [["same", "hangs", {}]]}))
        await person.until(lambda: "hanging" in str(person.calls(session)))
        person.process.send_signal(signal.SIGKILL)
        await asyncio.wait([turn])
        assert turn.exception() is not None
    async with editor(tmp_path) as person:
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        await person.prompt(session, {"calls": [["same", "look", {"path": "a"}]]})
        told = [updates[0]["toolCallId"].partition(".")[2] for updates in person.calls(session).values()]
        assert told == ["same", "same.2"]
        await person.connection.close_session(session_id=session)
        since = len(person.messages)
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        again = person.calls(session, since).values()
        assert [updates[0]["toolCallId"].partition(".")[2] for updates in again] == told


async def test_X1_the_end_of_input_is_a_graceful_end_and_kept_handles_end_with_it(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "build", {"action": "spawn", "id": "b", "file": "/nowhere"}]]})
        assert statuses(person.calls(session)["1"])[-1] == "in_progress"
        printed, number = "", 1
        while "begun" not in printed:  # the command may not have run yet
            number += 1
            await person.prompt(session, {"calls": [[str(number), "build", {"action": "fetch", "id": "b"}]]})
            printed = shown(person.calls(session)[str(number)][-1])
    assert person.process.returncode == 0
    async with editor(tmp_path) as person:
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        end = person.calls(session)["1"][-1]
        assert end["status"] == "failed" and "begun" in shown(end)


async def test_X1_a_command_is_shown_in_a_terminal_of_the_client(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with editor(tmp_path, capabilities={"terminal": True}) as person:
        session = await person.new()
        spawn = {"action": "spawn", "id": "b", "file": str(flag)}
        await person.prompt(session, {"calls": [["1", "build", spawn]]})
        await person.until(lambda: "terminalId" in str(person.updates(session)))
        flag.touch()
        await person.until(lambda: any(m.get("method") == "terminal/release" for _, m in person.messages))
        end = person.calls(session)["1"][-1]
        assert end["status"] == "completed"
        (part,) = [part for part in end["content"] if part["type"] == "terminal"]
        process = person.terminals[part["terminalId"]]
        assert process.stdout is not None
        assert (await process.stdout.read()).decode().split() == ["begun", "ended"]
