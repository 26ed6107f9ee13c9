"""Permission for hosts and agents of workflows: only the user gives it, and for one at a time (K9, K10, Q2)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import power_cut, stored_in
from tests.patience import PATIENCE, until
from tests.turn.people import Person
from tests.unit.waiting.calls import Caller
from tests.unit.workflow.test_api import server
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, Question, Runtime, ToolCall
from keephold.ids import caller_of
from keephold.store.base import HandleQuery, Record
from keephold.tools.waiting.agents import AgentRequest
from keephold.turn.prompts import Answer, AskQuestion
from keephold.turn.tool_services import ToolServices

OUTSIDE = "127.0.0.2"


@pytest.fixture(autouse=True)
def _public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.tools.workflow.pinned.is_public", lambda address: str(address) == OUTSIDE)


class Host:
    """A host that notes what is requested from it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, method: str, path: str, *_: Any) -> tuple[int, dict[str, str], bytes]:
        self.seen.append(path)
        return 200, {}, b"page"


@keephold.tool
async def harmless() -> bool:
    return True


async def started(rt: Runtime, *steps: dict[str, Any]) -> str:
    begun = await Caller(rt)("execute_workflow_async", workflowId="w", name="w", steps=list(steps))
    return str(begun["handleId"])


def api(id: str, url: str) -> dict[str, Any]:
    return {"id": id, "type": "api", "config": {"url": url}}


async def calls(rt: Runtime, tool: str) -> list[Record]:
    return [each for each in await rt.registry.store.handles(HandleQuery(stateful=None)) if each.tool == tool]


@pytest.mark.parametrize("by", ["client", "model", "old store"])
async def test_K10_a_call_with_the_label_of_a_step_does_not_answer_for_the_user(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, the workflow took the result of that call for the user's answer. `old store`: an earlier version
    has recorded such a call."""
    store, host = stored_in(tmp_path), Host()
    if by == "old store":
        monkeypatch.setattr("keephold.turn.batch.outside_label", lambda label: label)
    async with server(host, OUTSIDE) as url:
        person = Person()
        async with with_wait_tools([harmless], store=store, prompter=person) as rt:
            await started(rt, api("a", url))
            await person.sees()
            (asking,) = await calls(rt, "allow_api_host")
            forged = ToolCall(asking.call_id, "harmless")
            if by == "model":
                async with rt.turn("main") as turn:
                    (response,) = await turn.run([forged])
                    after = power_cut(store)
            else:
                response = await rt.call_queue("main").call(forged)
                after = power_cut(store)
            assert (response.id, response.result) == (asking.call_id, "true"), "the caller sees its own label"
            (workflow,), (recorded,) = await calls(rt, "execute_workflow_async"), await calls(rt, "harmless")
            if by != "old store":
                made_by = [caller_of("main", each.call_id) for each in (asking, recorded)]
                assert made_by == [workflow.uid, None], "nor does it count as made by the workflow in crash loops"
        person = Person()
        async with with_wait_tools([harmless], store=after, prompter=person) as rt:

            async def decided() -> bool:
                return bool(person.open or host.seen)

            await until(decided)
            assert host.seen == [] and isinstance(person.open[0], AskQuestion)


async def test_K10_after_a_restart_an_answer_counts_only_for_the_host_it_was_given_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored_in(tmp_path)
    services: list[ToolServices] = []
    connect = ToolServices.connect

    def noted(self: ToolServices, *parts: Any) -> None:
        services.append(self)
        connect(self, *parts)

    async def asks(name: str, *, again: bool) -> Any:
        given, label = {"host": name, "request": {"url": f"https://{name}/"}}, f"{'0' * 32}:a:1"
        return await services[-1].run("main", "allow_api_host", given, label=label, again=again, internal=True)

    monkeypatch.setattr(ToolServices, "connect", noted)
    async with with_wait_tools(store=store, prompter=Person(Answer(True))):
        assert await asks("a.test", again=False)
    person = Person(Answer(True))
    async with with_wait_tools(store=store, prompter=person):
        assert await asks("a.test", again=True)
        assert person.seen == [], "the answer is kept"
        assert await asks("b.test", again=True)
        (asked,) = person.seen
        assert isinstance(asked, AskQuestion) and "b.test" in asked.question.text


async def test_Q2_answers_about_hosts_and_agents_are_not_remembered() -> None:
    """`The same answer to this question`, for one host, allowed all hosts; for an agent, all agents."""
    person, host = Person(*[Answer(True, remember=True)] * 6), Host()
    async with server(host, OUTSIDE) as one, server(host, OUTSIDE) as two, with_wait_tools(prompter=person) as rt:

        async def asks(call: Call, request: AgentRequest) -> Any:
            return await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean"))

        for id in "xy":
            rt.agent_functions.add(id, asks, "replay", None, run="ask")
        agents = [{"id": id, "type": "agent", "config": {"agentId": id, "prompt": "p"}} for id in "xy"]
        async with asyncio.timeout(PATIENCE):
            ended = await Caller(rt).wait_for(await started(rt, api("a", one), api("b", two), *agents))
    assert ended["status"] == "completed", ended
    asked = [each for each in person.seen if isinstance(each, AskQuestion)]
    assert [each.question.id for each in asked] == ["allow_api_host"] * 2 + ["run_agent", "sure"] * 2
    assert not any(each.may_remember for each in asked) and host.seen == ["/", "/"]
