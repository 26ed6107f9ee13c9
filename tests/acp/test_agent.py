"""`keephold acp` and an editor made with the Python ACP SDK: sessions, turns, tool calls (X1, X2)."""

import asyncio
from pathlib import Path
from typing import Any

import acp
import pytest
from tests.acp.editor import Editor, editor, shown, statuses


def tail(person: Editor) -> list[Any]:
    """The last two messages that came: methods, or the result or error of an answer."""
    came = [message for way, message in person.messages if way == "in"]
    return [message.get("method") or message.get("result") or message["error"] for message in came[-2:]]


async def test_X1_the_handshake(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        answer = next(m["result"] for way, m in person.messages if way == "in")
        assert answer["protocolVersion"] == 1 and answer["agentInfo"]["name"] == "keephold"
        offered = answer["agentCapabilities"]
        assert offered["loadSession"] and offered["promptCapabilities"]["image"]
        assert {"list", "resume", "close", "delete", "additionalDirectories"} == set(offered["sessionCapabilities"])
        assert offered["_meta"] == {"keephold/turnComplete": {}}
        created = await person.connection.new_session(cwd="/tmp", mcp_servers=[])
        assert created.modes is not None and created.modes.current_mode_id == "ask"
        assert len(created.session_id) >= 32
    assert person.process.returncode == 0
    assert (tmp_path / "stderr").read_text() == f"using {tmp_path}/keephold.toml\n"


async def test_X1_a_turn_streams_and_X2_its_end_is_told_last(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        assert await person.prompt(session, {"think": "hm", "text": ["a ", "b ", "c"]}) == "end_turn"
        kinds = [update["sessionUpdate"] for update in person.updates(session)]
        assert kinds == ["session_info_update", "agent_thought_chunk", *["agent_message_chunk"] * 3]
        assert person.text(session) == "a b c"
        request = next(m["id"] for way, m in person.messages if way == "out" and m.get("method") == "session/prompt")
        assert person.signals() == [{"sessionId": session, "promptRequestId": str(request), "stopReason": "end_turn"}]
        assert tail(person) == ["_keephold/turn_complete", {"stopReason": "end_turn"}]
        assert all("_meta" not in update for update in person.updates(session))


async def test_X1_a_one_shot_call_is_pending_then_in_progress_then_completed(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        calls = [["1", "look", {"path": "a.txt", "line": 7}], ["2", "fails", {}], ["3", "nothing", {}]]
        await person.prompt(session, {"calls": calls})
        look, fails, unknown = (person.calls(session)[id] for id in "123")
        assert look[0]["title"] == "look path=a.txt line=7" and look[0]["kind"] == "read"
        assert look[0]["rawInput"] == {"path": "a.txt", "line": 7}
        assert [where["line"] for where in look[0]["locations"]] == [7]
        assert look[0]["locations"][0]["path"].endswith("/a.txt") and look[0]["locations"][0]["path"].startswith("/")
        assert statuses(look) == ["pending", "in_progress", "completed"]
        assert shown(look[-1]) == "looked at a.txt" and look[-1]["rawOutput"] == "looked at a.txt"
        assert statuses(fails) == ["pending", "in_progress", "failed"] and shown(fails[-1]) == "it broke"
        assert statuses(unknown) == ["pending", "failed"] and "unknown tool" in shown(unknown[-1])
        assert person.text(session) == "done"


async def test_X1_a_label_that_comes_again_in_a_turn_is_another_call(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        step = {"calls": [["1", "look", {"path": "a"}]]}
        await person.prompt(session, step, step)
        await person.prompt(session, step)
        ids = [u["toolCallId"] for u in person.updates(session) if u["sessionUpdate"] == "tool_call"]
        assert len(set(ids)) == 3


async def test_X1_a_diff_is_shown(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "change", {"path": "/x/a.txt", "new": "now"}]]})
        change = person.calls(session)["1"]
        diff = {"type": "diff", "path": "/x/a.txt", "oldText": "old", "newText": "now"}
        assert change[0]["kind"] == "edit" and change[0]["locations"] == [{"path": "/x/a.txt"}]
        assert diff in change[-1]["content"] and shown(change[-1]) == "changed"
        since = len(person.messages)
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        assert diff in person.calls(session, since)["1"][-1]["content"]


async def test_X1_what_is_printed_is_told_in_few_updates_and_nothing_is_lost_at_the_end(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "floods", {"lines": 20000}]]})
        floods = person.calls(session)["1"]
        assert statuses(floods) == ["pending", "in_progress", "completed"]
        assert len(floods) < 100
        assert any("line " in shown(update) for update in floods[1:-1])


async def test_X2_a_kept_handle_stays_in_progress_and_its_end_is_told_between_turns(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with editor(tmp_path) as person:
        session = await person.new()
        spawn = {"action": "spawn", "id": "w", "file": str(flag)}
        assert await person.prompt(session, {"calls": [["1", "waits", spawn]]}) == "end_turn"
        assert statuses(person.calls(session)["1"]) == ["pending", "in_progress"]
        assert "waiting" in shown(person.calls(session)["1"][-1])
        since = len(person.messages)
        flag.touch()
        await person.until(lambda: person.updates(session, since))
        (update,) = person.updates(session, since)
        assert update["status"] == "completed" and "it is there" in shown(update)
        assert update["_meta"] == {"keephold/background": True}
        assert len(person.signals()) == 1
        assert await person.prompt(session, {"text": ["next"]}) == "end_turn"
        assert all("_meta" not in each for each in person.updates(session, since)[1:])


async def test_X1_what_is_sent_to_a_handle_is_a_call_of_its_own(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(
            session,
            {"calls": [["1", "job", {"action": "spawn", "id": "j"}]]},
            {
                "calls": [
                    ["2", "job", {"action": "apply", "id": "j", "input": "finish"}],
                    ["3", "await", {"all": ["j"]}],
                ]
            },
        )
        calls = person.calls(session)
        assert calls["1"][0]["title"] == "j: job" and statuses(calls["1"]) == ["pending", "in_progress", "completed"]
        assert "the job is finished" in shown(calls["1"][-1]) and "working" in shown(calls["1"][-1])
        assert calls["2"][0]["title"] == "apply j (job) finish" and statuses(calls["2"])[-1] == "completed"
        assert calls["3"][0]["kind"] == "think" and statuses(calls["3"])[-1] == "completed"


async def test_X1_an_aborted_handle_has_failed_and_says_why(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(
            session,
            {"calls": [["1", "job", {"action": "spawn", "id": "j"}]]},
            {"calls": [["2", "job", {"action": "abort", "id": "j"}]]},
        )
        job = person.calls(session)["1"]
        assert statuses(job)[-1] == "failed" and "bort" in shown(job[-1])


async def test_X2_an_error_of_the_model_is_an_error_after_the_signal(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        with pytest.raises(acp.RequestError):
            await person.prompt(session, {"fail": "no such luck"})
        assert person.signals()[-1]["stopReason"] == "error"
        assert [method for method in tail(person) if isinstance(method, str)] == ["_keephold/turn_complete"]
        assert "no such luck" in tail(person)[1]["message"]
        assert await person.prompt(session, {"text": ["again"]}) == "end_turn"


async def test_X1_a_second_prompt_while_a_turn_runs_is_refused(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        first = asyncio.ensure_future(person.prompt(session, {"text": ["begun"], "hang": True}))
        await person.until(lambda: person.text(session) == "begun")
        with pytest.raises(acp.RequestError, match="is running"):
            await person.prompt(session, {"text": ["no"]})
        await person.connection.cancel(session)
        assert await first == "cancelled"
        assert [each["stopReason"] for each in person.signals()] == ["cancelled"]


async def test_X1_two_sessions_at_once_keep_apart(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        sessions = [await person.new() for _ in range(2)]
        words = [[f"{name}{at} " for at in range(50)] for name in "ab"]
        ends = await asyncio.gather(
            *(
                person.prompt(session, {"text": said, "calls": [["1", "look", {"path": session}]]}, {"text": said})
                for session, said in zip(sessions, words, strict=True)
            )
        )
        assert ends == ["end_turn", "end_turn"]
        for session, said in zip(sessions, words, strict=True):
            assert person.text(session) == "".join(said) * 2
            assert shown(person.calls(session)["1"][-1]) == f"looked at {session}"
        assert {each["sessionId"] for each in person.signals()} == set(sessions)
