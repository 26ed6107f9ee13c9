"""What waits for a person: each kind of prompt with each decision, what is remembered, and who else may be asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.control.places import Needs
from tests.mcp.clients import connected
from tests.mcp.serving import serving
from tests.turn.calls import STATEFUL, abort, call, spawn, texts
from tests.turn.people import Person, attended, few

import keephold
from keephold import Call, Question, Runtime, Turn
from keephold.control.control import Control
from keephold.testing import VirtualClock
from keephold.turn.prompt_queue import Asking, FromList, LeftOpen
from keephold.turn.prompts import Answer, Approved, AskQuestion, Decision, Denied, Dismissed, Edited, Prompt, RunTool

SELECT = {"Select": {"options": ["one", "two"]}}
SHOWN = {"id", "kind", "conversation", "tool", "handle", "handle_id", "since", "action", "arguments", "result",
         "is_error", "question", "may_remember", "until", "digest", "edit", "problem"}  # fmt: skip


@keephold.tool(run="ask")
async def echo(text: str) -> str:
    return f"echo {text}"


@keephold.tool(run="edit")
async def shape(text: str) -> str:
    return f"shape {text}"


@keephold.tool(result="ask")
async def private(fails: bool = False) -> str:
    if fails:
        raise keephold.ToolError("it went wrong", code="tool_error")
    return "a secret"


@keephold.tool
async def asks(call: Call, answer_type: Any = "Text", secret: bool = False, default: Any = None) -> str:
    question = Question(id="q", text="Well?", answer_type=answer_type, secret=secret, default=default)
    return f"answer {json.dumps(await call.ask(question))}"


@keephold.tool(actions=STATEFUL)
async def wonders(call: Call) -> str:
    return f"answer {json.dumps(await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean')))}"


TOOLS = [echo, shape, private, asks, wonders]


@asynccontextmanager
async def asked(clock: VirtualClock | None) -> AsyncIterator[tuple[Needs, Control, Turn]]:
    async with Runtime(TOOLS, clock=clock, prompter=FromList()) as rt, rt.turn("main") as turn:
        needs = Needs(rt)
        yield needs, Control(rt), turn
    assert needs.listed() == [] and len(needs) == 0


async def open_now(needs: Needs, count: int = 1) -> list[dict[str, Any]]:
    """What is open, once it is so much."""
    while len(needs) != count:  # noqa: ASYNC110 (virtual time; a hang is the test's)
        await asyncio.sleep(0.001)
    return needs.listed()


def say(decision: str, **more: Any) -> dict[str, Any]:
    return {"decision": decision, **more}


@pytest.mark.parametrize(
    ("one", "kind", "said", "result"),
    [
        (call("echo", text="hi"), "permission", say("approve"), "echo hi"),
        (call("echo", text="hi"), "permission", say("deny"), "Tool skipped by user."),
        (call("echo", text="hi"), "permission", say("deny", reason="  "), "Tool skipped by user."),
        (call("echo", text="hi"), "permission", say("deny", reason="later"), "Tool skipped by user: later"),
        (call("echo", text="hi"), "permission", say("edit", value={"text": "ho"}), "echo ho"),
        (call("echo", text="hi"), "permission", say("edit", value='{"text": "ho"}'), "echo ho"),
        (call("shape", text="hi"), "permission", say("approve"), "shape hi"),
        (call("echo", text="hi"), "permission", say("cancel"), "Tool skipped by user."),
        (call("private"), "result", say("approve"), "a secret"),
        (call("private"), "result", say("deny"), "Result delivery skipped by user."),
        (call("private"), "result", say("deny", reason="mine"), "Result delivery skipped by user: mine"),
        (call("private"), "result", say("edit", value="less"), "less"),
        (call("private"), "result", say("cancel"), "Result delivery cancelled."),
        (call("private", fails=True), "result", say("edit", value="less"), "less"),
        (call("asks"), "question", say("answer", value="so\n"), 'answer "so"'),
        (call("asks", answer_type="Boolean"), "question", say("answer", value=True), "answer true"),
        (call("asks", answer_type="Boolean"), "question", say("answer", value="no"), "answer false"),
        (call("asks", answer_type=SELECT), "question", say("answer", value="2"), 'answer "two"'),
        (call("asks", answer_type=SELECT), "question", say("answer", value="one"), 'answer "one"'),
        (call("asks", secret=True), "secret", say("answer", value="pass word"), 'answer "pass word"'),
        (call("asks"), "question", say("cancel"), "Question `q` was not answered: the person cancelled the prompt."),
    ],
)
async def test_P1_Q1_every_prompt_takes_its_decisions(
    one: keephold.ToolCall, kind: str, said: dict[str, Any], result: str, clock: VirtualClock
) -> None:
    async with asked(clock) as (needs, control, turn):
        running = asyncio.create_task(texts(turn, one))
        (need,) = await open_now(needs)
        assert set(need) == SHOWN and (need["kind"], need["tool"]) == (kind, one.name)
        assert need["edit"] is (one.name == "shape") and need["problem"] is None
        assert (need["question"] is not None) is (kind in ("question", "secret"))
        assert need["arguments"] == (one.arguments if kind == "permission" else None)
        assert need["is_error"] is (("fails" in one.arguments) if kind == "result" else None)
        assert await control.decide(need["id"], said) == {"status": "taken", "problem": None}
        assert (await control.decide(need["id"], said))["status"] == "gone"
        assert await control.requests.page() == [], "what is decided is open no more, whoever looks however soon"
        assert await running == [result]


@pytest.mark.parametrize(
    ("one", "said", "problem"),
    [
        (call("echo", text="hi"), {}, "`decision` must be one of approve, deny, edit, cancel here"),
        (call("echo", text="hi"), say("answer", value="x"), "`decision` must be one of"),
        (call("echo", text="hi"), say("edit"), "the arguments must be a JSON object"),
        (call("echo", text="hi"), say("edit", value="{"), "the arguments are not JSON"),
        (call("echo", text="hi"), say("edit", value="[" * 100_000), "the arguments are not JSON"),
        (call("echo", text="hi"), say("edit", value=[1]), "the arguments must be a JSON object"),
        (call("private"), say("edit"), "`value` must be the text"),
        (call("private"), say("edit", value={"a": 1}), "`value` must be the text"),
        (call("asks"), say("approve"), "`decision` must be one of answer, cancel here"),
        (call("asks"), say("answer", value=3), "the answer must be"),
        (call("asks", answer_type="Boolean"), say("answer", value="maybe"), "the answer must be"),
        (call("asks", answer_type=SELECT), say("answer", value="3"), "the answer must be"),
        (call("asks", answer_type=SELECT), say("answer"), "the answer must be"),
    ],
)
async def test_P5_what_does_not_fit_is_said_again_and_nothing_is_decided(
    one: keephold.ToolCall, said: dict[str, Any], problem: str, clock: VirtualClock
) -> None:
    async with asked(clock) as (needs, _, turn):
        running = asyncio.create_task(texts(turn, one))
        (need,) = await open_now(needs)
        told = needs.decide(need["id"], said)
        assert told["status"] == "again" and problem in (told["problem"] or "")
        assert needs.listed() == [need]
        needs.decide(need["id"], say("cancel"))
        await running


async def test_P5_edited_arguments_that_the_tool_does_not_take_are_refused_where_they_were_edited() -> None:
    spawned = spawn("careful", "c", text="hi")

    @keephold.tool(actions=STATEFUL, run="ask")
    async def careful(text: str) -> str:
        return f"careful {text}"

    async with Runtime([careful, *TOOLS], prompter=FromList()) as rt, rt.turn("main") as turn:
        control, needs = Control(rt), Needs(rt)
        for one, result in ((call("echo", text="hi"), "echo ho"), (spawned, '"id":"c"')):
            running = asyncio.create_task(texts(turn, one))
            (need,) = await open_now(needs)
            for wrong in ({"txt": "ho"}, {"text": 5}, {}):
                told = await control.decide(need["id"], say("edit", value=wrong))
                assert told["status"] == "again" and "`t" in (told["problem"] or ""), told
                assert await control.request(need["id"]) == need, "it is still asked, and asked the same"
            assert (await control.decide(need["id"], say("edit", value={"text": "ho"})))["status"] == "taken"
            assert result in (await running)[0]


async def test_P5_edited_arguments_that_the_tool_does_not_take_are_asked_about_again(clock: VirtualClock) -> None:
    client = Person()
    async with Runtime(TOOLS, clock=clock, prompter=FromList()) as rt:
        needs = Needs(rt)
        visit = await rt.call_queue("desk").begin(call("echo", text="hi"), prompt_queue=rt.prompt_queue.joined(client))
        (need,) = await open_now(needs)
        await client.says(Edited({"txt": "ho"}))
        await few()
        (again,) = await open_now(needs)
        assert again["id"] != need["id"] and again["problem"] and again["arguments"] == {"txt": "ho"}
        assert len(client.open) == 1
        needs.decide(again["id"], say("edit", value={"text": "ho"}))
        assert (await visit.response()).result == "echo ho" and client.open == []


async def test_Q5_all_are_open_at_once_and_each_is_decided_for_itself(clock: VirtualClock) -> None:
    async with asked(clock) as (needs, control, turn):
        changes: list[int] = []
        others: list[int] = []
        control.runtime.approvals.on_changed.add(lambda: changes.append(len(needs)))
        control.runtime.approvals.on_changed.add(lambda: others.append(len(needs)))
        calls = [call("echo", text="hi"), call("asks"), call("private"), call("echo", text="ho")]
        running = asyncio.create_task(texts(turn, *calls))
        shown = await open_now(needs, 4)
        assert sorted(need["kind"] for need in shown) == ["permission", "permission", "question", "result"]
        assert len({need["id"] for need in shown}) == 4
        for need in reversed(shown):  # a person chooses
            word = "answer" if need["kind"] == "question" else "approve"
            assert needs.decide(need["id"], say(word, value="x"))["status"] == "taken"
        assert await running == ["echo hi", 'answer "x"', "a secret", "echo ho"]
        assert changes[:4] == [1, 2, 3, 4] and changes[-1] == 0 and others == changes


@pytest.mark.parametrize(
    ("said", "first", "others"),
    [
        (say("approve", remember=True), "echo a", ["echo b", "echo c"]),
        (say("deny", remember=True), "Tool skipped by user.", ["Tool skipped by user (remembered)."] * 2),
    ],
)
async def test_P5_what_is_remembered_settles_the_others_that_are_open(
    said: dict[str, Any], first: str, others: list[str], clock: VirtualClock
) -> None:
    async with asked(clock) as (needs, _, turn):
        running = asyncio.create_task(
            texts(turn, *(call("echo", text=each) for each in "abc"), call("shape", text="d"))
        )
        shown = await open_now(needs, 4)
        mine = next(need for need in shown if need["arguments"] == {"text": "a"})
        assert mine["may_remember"]
        needs.decide(mine["id"], said)
        (left,) = await open_now(needs)
        assert left["tool"] == "shape", "it was said of one tool"
        needs.decide(left["id"], say("approve"))
        assert await running == [first, *others, "shape d"]


async def test_P5_what_is_remembered_settles_no_edit_that_was_refused(clock: VirtualClock) -> None:
    """The arguments of that prompt are those that the user has edited wrongly: nobody has allowed them."""
    person = Person(Edited({"text": 5}))
    async with attended(clock, [echo], person=person) as (rt, turn):
        needs = Needs(rt)
        running = asyncio.create_task(texts(turn, call("echo", text="a"), call("echo", text="b")))
        await few()
        wrong, right = sorted(await open_now(needs, 2), key=lambda need: need["problem"] is None)
        assert wrong["arguments"] == {"text": 5} and right["arguments"] == {"text": "b"}
        needs.decide(right["id"], say("approve", remember=True))
        (left,) = await open_now(needs)
        assert left["problem"]
        needs.decide(left["id"], say("edit", value={"text": "c"}))
        assert await running == ["echo c", "echo b"]


async def test_P5_a_call_that_is_asked_about_again_runs_once_although_its_old_prompt_is_still_shown(
    clock: VirtualClock,
) -> None:
    ran: list[str] = []

    @keephold.tool(run="ask")
    async def once(text: str) -> str:
        ran.append(text)
        return text

    async def slow(prompt: Prompt) -> Decision:
        assert isinstance(prompt, RunTool)
        if prompt.problem is None:
            prompt.arguments["text"] = "changed"  # so that it is asked again
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)  # closes its window
        raise AssertionError

    async with Runtime([once], clock=clock, prompter=slow) as rt, rt.turn("main") as turn:
        needs = Needs(rt)
        running = asyncio.create_task(texts(turn, call("once", text="a"), call("once", text="b")))
        await few()
        first, second = await open_now(needs, 2)
        needs.decide(first["id"], say("approve"))
        needs.decide(second["id"], say("approve", remember=True))
        await few()
        (again,) = await open_now(needs)
        needs.decide(again["id"], say("approve"))
        await running
        assert sorted(ran) == ["b", "changed"], "each once"
        await clock.advance(1)  # the prompters end


async def test_Q5_a_remembered_answer_settles_the_same_question_of_others(clock: VirtualClock) -> None:
    async with asked(clock) as (needs, _, turn):
        calls = [call("asks", answer_type="Boolean") for each in range(3)]
        running = asyncio.create_task(texts(turn, *calls))
        shown = await open_now(needs, 3)
        assert all(need["may_remember"] for need in shown)
        needs.decide(shown[1]["id"], say("answer", value="yes", remember=True))
        assert await running == ["answer true"] * 3
        assert needs.listed() == []


async def test_Q5_what_may_not_be_remembered_is_not(clock: VirtualClock) -> None:
    async with asked(clock) as (needs, _, turn):
        running = asyncio.create_task(texts(turn, call("asks"), call("asks")))
        shown = await open_now(needs, 2)
        assert not any(need["may_remember"] for need in shown)
        needs.decide(shown[0]["id"], say("answer", value="x", remember=True))
        (left,) = await open_now(needs)
        needs.decide(left["id"], say("answer", value="y"))
        assert sorted(await running) == ['answer "x"', 'answer "y"']


async def test_C7_a_prompt_goes_with_the_handle_that_asked(clock: VirtualClock) -> None:
    async with asked(clock) as (needs, control, turn):
        await turn.run([spawn("wonders", "w"), spawn("wonders", "v")])
        shown = await open_now(needs, 2)
        assert {need["handle_id"] for need in shown} == {"w", "v"} and all(need["handle"] for need in shown)
        assert await control.requests.page(handle=shown[0]["handle"]) == shown[:1]
        await turn.run([abort("wonders", "w")])
        (left,) = await open_now(needs)
        assert left["handle_id"] == "v"
        gone = next(need for need in shown if need["handle_id"] == "w")
        told = await control.decide(gone["id"], say("answer", value=True))
        assert told["status"] == "gone" and told["problem"]
        assert (await control.runtime_view.handle(left["handle"]))["question"]["id"] == "sure"
        await control.abort(left["handle"])
        await open_now(needs, 0)


async def test_closing_withdraws_what_is_open_and_decides_nothing(clock: VirtualClock) -> None:
    rt, client = Runtime(TOOLS, clock=clock, prompter=FromList()), Person()
    async with rt:
        needs = Needs(rt)
        running = asyncio.create_task(rt.turn("main").__aenter__())
        turn = await running
        batch = asyncio.create_task(texts(turn, call("echo", text="a")))
        visit = await rt.call_queue("desk").begin(call("echo", text="b"), prompt_queue=rt.prompt_queue.joined(client))
        await open_now(needs, 2)
    assert needs.listed() == [] and client.open == []
    response = await visit.response()
    assert response.is_error or "echo" not in response.result
    batch.cancel()
    await asyncio.wait([batch])


async def test_the_ids_of_another_process_name_nothing() -> None:
    async with asked(None) as (one, _, turn), asked(None) as (other, control, _):
        assert (await control.decide("00000000-1", say("approve")))["status"] == "gone"
        running = asyncio.create_task(texts(turn, call("echo", text="hi")))
        (need,) = await open_now(one)
        assert other.decide(need["id"], say("approve"))["status"] == "gone"
        assert (await control.decide(need["id"], say("approve")))["status"] == "gone"
        one.decide(need["id"], say("approve"))
        await running


# Beside a client

PERMISSION = RunTool(tool="t", action=None, id=None, arguments={"a": 1}, conversation="c")
SECRET = AskQuestion(tool="t", id=None, question=Question(id="q", text="?", secret=True), conversation="c")


@asynccontextmanager
async def beside(prompt: Prompt, client: Any) -> AsyncIterator[tuple[Needs, Asking, "asyncio.Future[Decision]"]]:
    """Ask a client, whom the list does not delay."""
    decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
    async with Runtime(prompter=FromList()) as rt:
        needs, asking = Needs(rt), rt.prompt_queue.joined(client).ask(prompt, decided.set_result)
        await few()
        yield needs, asking, decided
        asking.withdraw()
        await few()
        assert needs.listed() == [] and client.open == []


async def test_whoever_answers_first_has_answered_and_the_other_is_not_asked_any_more() -> None:
    client = Person()
    async with beside(PERMISSION, client) as (needs, asking, deciding):
        assert len(needs) == 1 and client.open == [asking.prompt]
        await client.says(Denied("no"))
        assert await deciding == Denied("no")
        await few()
        assert needs.listed() == []
    client = Person()
    async with beside(PERMISSION, client) as (needs, _, deciding):
        assert needs.decide(needs.listed()[0]["id"], say("approve"))["status"] == "taken"
        assert await deciding == Approved()
        await few()
        assert client.open == [] and client.withdrawn == client.seen


async def test_both_at_once_is_one_of_them() -> None:
    client = Person()
    async with beside(PERMISSION, client) as (needs, _, deciding):
        await client.says(Denied("no"))
        assert needs.decide(needs.listed()[0]["id"], say("approve"))["status"] == "taken"
        assert await deciding == Approved()


@pytest.mark.parametrize("gone", [LeftOpen(), Dismissed("the client has gone"), Dismissed(""), OSError("no pipe")])
async def test_a_client_that_cannot_ask_or_has_gone_leaves_it_to_the_dashboard(
    gone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = Person(gone)
    async with beside(PERMISSION, client) as (needs, _, deciding):
        assert not deciding.done() and len(needs) == 1
        needs.decide(needs.listed()[0]["id"], say("deny", reason="not now"))
        assert await deciding == Denied("not now")
    assert bool(caplog.records) is isinstance(gone, OSError)


async def test_a_person_who_cancels_at_their_client_has_decided() -> None:
    async with beside(PERMISSION, Person(Dismissed())) as (_, _, deciding):
        assert await deciding == Dismissed()


async def test_K5_a_secret_is_asked_for_here_alone() -> None:
    client = Person()
    async with beside(SECRET, client) as (needs, _, deciding):
        assert client.seen == []
        needs.decide(needs.listed()[0]["id"], say("answer", value="pass"))
        assert await deciding == Answer("pass")
    assert client.seen == []


async def test_what_nobody_needs_any_more_is_taken_back_from_both() -> None:
    client = Person()
    async with beside(PERMISSION, client) as (needs, asking, deciding):
        asking.withdraw()
        await few()
        assert needs.listed() == [] and client.withdrawn == client.seen and not deciding.done()


async def test_P5_what_is_remembered_settles_what_clients_are_asked_as_well(clock: VirtualClock) -> None:
    """Calls of MCP clients each have people of their own; a person at the dashboard sees them all."""
    async with Runtime(TOOLS, clock=clock, prompter=FromList()) as rt:
        needs = Needs(rt)
        clients, desk = [Person(), Person()], rt.call_queue("main")
        joined = [rt.prompt_queue.joined(client) for client in clients]
        visits = [
            await desk.begin(call("echo", text=each), prompt_queue=of) for each, of in zip("ab", joined, strict=True)
        ]
        visits.append(await desk.begin(call("echo", text="c")))
        shown = await open_now(needs, 3)
        needs.decide(shown[0]["id"], say("approve", remember=True))
        assert [(await visit.response()).result for visit in visits] == ["echo a", "echo b", "echo c"]
        await few()
        assert needs.listed() == [] and all(client.open == [] for client in clients)


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
@pytest.mark.parametrize("first", ["client", "dashboard"])
async def test_M4_a_client_over_MCP_and_the_dashboard_are_asked_beside_each_other(
    mode: str, first: str, tmp_path: Path
) -> None:
    forms: asyncio.Queue[str] = asyncio.Queue()

    async def elicited(context: Any, params: Any) -> Any:
        forms.put_nowait(params.message)
        if first == "dashboard":
            await asyncio.Event().wait()
        from mcp_types import ElicitResult

        return ElicitResult(action="accept", content={"approve": True})

    async with serving(tools=TOOLS, prompter=FromList()) as server:
        needs = Needs(server.runtime)
        async with connected(server.url, mode, elicitation_callback=elicited) as client:
            calling = asyncio.create_task(client.call_tool("echo", {"text": "hi"}))
            assert "echo" in await forms.get()
            if first == "dashboard":
                (need,) = needs.listed()
                assert needs.decide(need["id"], say("deny", reason="no"))["status"] == "taken"
            if first == "dashboard" and mode != "legacy":
                calling.cancel()  # a modern client is asked by an answer: it is at its own form now
                await asyncio.wait([calling])
            else:
                said: Any = (await calling).content[0]
                assert said.text == ("echo hi" if first == "client" else "Tool skipped by user: no")
            await open_now(needs, 0)
