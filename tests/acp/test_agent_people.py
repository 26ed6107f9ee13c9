"""What the person at the editor is asked, and cancelling (P, Q, X1, X4)."""

import asyncio
from pathlib import Path
from typing import Any

import acp
import pytest
from tests.acp.editor import Editor, editor, shown, statuses

ASK = {"calls": [["1", "asked", {"word": "hello"}]]}


def requests(person: Editor, method: str = "session/request_permission") -> list[dict[str, Any]]:
    return [m["params"] for way, m in person.messages if way == "in" and m.get("method") == method]


async def test_P1_a_call_that_is_allowed_runs(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        await person.prompt(session, ASK)
        (asked,) = requests(person)
        assert asked["toolCall"]["title"] == "asked word=hello" and asked["toolCall"]["rawInput"] == {"word": "hello"}
        assert [each["kind"] for each in asked["options"]] == [
            "allow_once",
            "allow_always",
            "reject_once",
            "reject_always",
        ]
        call = person.calls(session)["1"]
        assert asked["toolCall"]["toolCallId"] == call[0]["toolCallId"] and call[0]["kind"] == "execute"
        assert statuses(call) == ["pending", "in_progress", "completed"] and "ran hello" in shown(call[-1])


@pytest.mark.parametrize("said", ["reject_once", None])
async def test_P3_a_call_that_is_rejected_or_whose_prompt_is_cancelled_never_runs(
    tmp_path: Path, said: str | None
) -> None:
    async with editor(tmp_path) as person:
        person.permission = lambda _: said
        session = await person.new()
        assert await person.prompt(session, ASK) == "end_turn"
        call = person.calls(session)["1"]
        assert statuses(call) == ["pending", "failed"] and shown(call[-1]) == "Tool skipped by user."


async def test_P5_what_is_allowed_for_the_turn_is_not_asked_again_in_it(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        person.permission = lambda _: "allow_always"
        session = await person.new()
        await person.prompt(session, ASK, {"calls": [["2", "asked", {"word": "again"}]]})
        assert len(requests(person)) == 1
        await person.prompt(session, ASK)
        assert len(requests(person)) == 2


async def test_P1_calls_that_look_the_same_are_asked_about_one_by_one(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        answers = iter(["reject_once", "allow_once"])
        person.permission = lambda _: next(answers)
        session = await person.new()
        same = {"word": "hello"}
        await person.prompt(session, {"calls": [["1", "asked", same], ["2", "asked", same]]})
        first, second = (person.calls(session)[id] for id in "12")
        assert [asked["toolCall"]["toolCallId"] for asked in requests(person)] == [
            first[0]["toolCallId"],
            second[0]["toolCallId"],
        ]
        assert statuses(first)[-1] == "failed" and statuses(second)[-1] == "completed"


HELD = '[conversation.tools.held]\nsource = "python"\nrun = "unattended"\nresult = "ask"\n'
HELD += 'function = "tests.acp.agents.playing:look"\n'


@pytest.mark.parametrize(("said", "seen"), [("allow_once", "looked at a"), ("reject_once", "Result delivery skipped")])
async def test_P1_whether_the_assistant_may_see_a_result_is_asked(tmp_path: Path, said: str, seen: str) -> None:
    async with editor(tmp_path, more=HELD) as person:
        person.permission = lambda _: said
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "held", {"path": "a"}]]})
        (asked,) = requests(person)
        assert asked["toolCall"]["content"][0]["content"]["text"] == "looked at a"
        held = person.calls(session)["1"]
        assert asked["toolCall"]["toolCallId"] == held[0]["toolCallId"]
        assert seen in shown(held[-1]) and statuses(held) == ["pending", "in_progress", "completed"]
        assert [update["title"] for update in held if "title" in update][-1] == "held path=a"
        await person.connection.set_session_mode(session_id=session, mode_id="unattended")
        await person.prompt(session, {"calls": [["2", "held", {"path": "b"}]]})
        assert len(requests(person)) == 1 and shown(person.calls(session)["2"][-1]) == "looked at b"


async def test_X1_nothing_is_asked_in_the_mode_unattended(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session, other = await person.new(), await person.new()
        await person.connection.set_session_mode(session_id=session, mode_id="unattended")
        mode, options = person.updates(session)
        assert mode["sessionUpdate"] == "current_mode_update" and mode["currentModeId"] == "unattended"
        assert options["configOptions"][0]["currentValue"] == "unattended"
        await person.prompt(session, ASK)
        assert requests(person) == [] and "ran hello" in shown(person.calls(session)["1"][-1])
        await person.prompt(other, ASK)
        assert [asked["sessionId"] for asked in requests(person)] == [other]
        with pytest.raises(acp.RequestError, match="no mode"):
            await person.connection.set_session_mode(session_id=session, mode_id="wild")


@pytest.mark.parametrize(
    ("kind", "options", "said", "answer"),
    [
        ("boolean", ["yes", "no", "always", "never"], "no", "answered False"),
        ("select", ["0", "1"], "1", "answered 'blue'"),
    ],
)
async def test_Q1_questions_with_a_few_answers_are_choices(
    tmp_path: Path, kind: str, options: list[str], said: str, answer: str
) -> None:
    async with editor(tmp_path) as person:
        given: list[dict[str, Any]] = []

        def choose(asked: dict[str, Any]) -> str:
            given.append(asked)
            return said

        person.permission = choose
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "asks", {"kind": kind}]]})
        assert given[0]["options"] == options and given[0]["toolCall"]["title"] == "Which?"
        call = person.calls(session)["1"]
        assert shown(call[-1]) == answer and statuses(call) == ["pending", "in_progress", "completed"]
        assert [update["title"] for update in call if "title" in update][-1] == f"asks kind={kind}"


async def test_Q1_a_text_is_asked_for_by_a_form(tmp_path: Path) -> None:
    async with editor(tmp_path, capabilities={"elicitation": {"form": {}}}) as person:
        person.elicited = lambda _: {"action": "accept", "content": {"q": "green"}}
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "asks", {"kind": "text"}]]})
        assert shown(person.calls(session)["1"][-1]) == "answered 'green'"
        (form,) = requests(person, "elicitation/create")
        assert form["requestedSchema"]["required"] == ["q"]


@pytest.mark.parametrize("kind", ["text", "secret"])
async def test_Q2_what_a_client_cannot_ask_is_refused_and_says_how(tmp_path: Path, kind: str) -> None:
    forms: dict[str, Any] = {} if kind == "text" else {"elicitation": {"form": {}}}
    async with editor(tmp_path, capabilities=forms) as person:
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "asks", {"kind": kind}]]})
        assert requests(person) == requests(person, "elicitation/create") == []
        call = person.calls(session)["1"]
        assert statuses(call)[-1] == "failed" and "keephold send" in shown(call[-1])


async def test_X4_cancel_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        turn = asyncio.ensure_future(person.prompt(session, {"text": ["so", " far"], "hang": True}))
        await person.until(lambda: person.text(session) == "so far")
        await person.connection.cancel(session)
        assert await turn == "cancelled"
        assert person.signals()[-1]["stopReason"] == "cancelled"
        assert await person.prompt(session, {"text": ["and on"]}) == "end_turn"


async def test_X4_cancel_in_the_middle_of_a_batch_ends_its_calls_before_the_signal(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        calls = [["1", "hangs", {}], ["2", "look", {"path": "a"}], ["3", "job", {"action": "spawn", "id": "j"}]]
        turn = asyncio.ensure_future(person.prompt(session, {"calls": calls}))
        await person.until(lambda: "hanging" in str(person.calls(session).get("1")))
        await person.connection.cancel(session)
        assert await turn == "cancelled"
        ended = {id: statuses(updates)[-1] for id, updates in person.calls(session).items()}
        assert ended == {"1": "failed", "2": "completed", "3": "in_progress"}  # `keep` keeps, also then
        came = [m.get("method", "answer") for way, m in person.messages if way == "in"]
        assert came[-2:] == ["_keephold/turn_complete", "answer"]


async def test_X4_cancel_while_a_permission_is_asked_takes_the_request_back(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        asked, cancelled = asyncio.Event(), asyncio.Event()

        async def ponder() -> str | None:
            asked.set()
            await cancelled.wait()
            return None

        person.permission = lambda _: ponder()
        session = await person.new()
        turn = asyncio.ensure_future(person.prompt(session, ASK))
        await asked.wait()
        await person.connection.cancel(session)
        await person.until(lambda: "$/cancel_request" in str(person.messages))
        cancelled.set()
        assert await turn == "cancelled"
        assert statuses(person.calls(session)["1"]) == ["pending", "failed"]
        assert any(m.get("method") == "$/cancel_request" for way, m in person.messages if way == "in")
        person.permission = lambda _: "allow_once"
        await person.prompt(session, ASK)
        assert "ran hello" in str(person.calls(session))


async def test_X4_a_prompt_can_be_cancelled_by_its_request(tmp_path: Path) -> None:
    async with editor(tmp_path) as person:
        session = await person.new()
        turn = asyncio.ensure_future(person.prompt(session, {"text": ["so far"], "hang": True}))
        await person.until(lambda: person.text(session) == "so far")
        request = next(m["id"] for way, m in person.messages if m.get("method") == "session/prompt")
        await person.connection._conn.send_notification("$/cancel_request", {"requestId": request})
        assert await turn == "cancelled"


async def test_X2_a_client_that_asks_gets_the_signal_as_an_update(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"_meta": {"keephold/turnComplete": {}}}
    async with editor(tmp_path, capabilities=wanted) as person:
        answer = next(m["result"] for way, m in person.messages if way == "in")
        assert "_meta" not in answer["agentCapabilities"]
        assert answer["agentCapabilities"]["sessionCapabilities"]["turnComplete"] == {}
        session = await person.new()
        await person.prompt(session, {"text": ["hi"]})
        assert person.signals() == []
        assert person.updates(session)[-1]["sessionUpdate"] == "turn_complete"
        person.problems.clear()  # the schema does not know what this client asked for


@pytest.mark.parametrize("setting", ["update", "off"])
async def test_X2_the_setting_says_how_the_end_is_told(tmp_path: Path, setting: str) -> None:
    async with editor(tmp_path, more=f'[acp]\nturn_complete = "{setting}"\n') as person:
        session = await person.new()
        await person.prompt(session, {"text": ["hi"]})
        assert person.signals() == []
        last = person.updates(session)[-1]["sessionUpdate"]
        assert last == ("turn_complete" if setting == "update" else "agent_message_chunk")
        person.problems.clear()
