"""Prompts and standing permissions that other processes see, decide and revoke (P6): two runtimes on one store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.patience import PATIENCE
from tests.turn.calls import STATEFUL, call, fetch, spawn, texts
from tests.turn.people import Person

import keephold
from keephold import Call, Question, Runtime, Tool, Turn
from keephold.control.control import Control
from keephold.store.base import Posted
from keephold.text import to_json
from keephold.turn import approvals
from keephold.turn.prompts import Answer, Approved, Denied


@keephold.tool(run="ask", actions=STATEFUL)
async def echo(text: str) -> str:
    return f"echo {text}"


@keephold.tool(result="ask")
async def private() -> str:
    return "a secret"


@keephold.tool
async def asks(call: Call) -> str:
    return f"sure {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"


TOOLS = [echo, private, asks]


class Scene(NamedTuple):
    """A runtime whose user sits at a prompter of their own, and the control of another process."""

    person: Person
    runtime: Runtime
    turn: Turn
    elsewhere: Control

    async def posted(self, count: int = 1) -> list[dict[str, Any]]:
        """The requests that the other process sees, once they are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(found := await self.elsewhere.requests.page()) != count:  # noqa: ASYNC110 (of another process)
                await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def scene(directory: Path, tools: Sequence[Tool] = TOOLS) -> AsyncIterator[Scene]:
    store, person = f"sqlite:///{directory / 'store.db'}", Person()
    async with (
        Runtime(tools, store=store, prompter=person) as runtime,
        Runtime(store=store) as other,
        runtime.turn("main") as turn,
    ):
        other.recovery.leaves_calls = True
        yield Scene(person, runtime, turn, Control(other))


def say(request: dict[str, Any], decision: str, **more: Any) -> dict[str, Any]:
    return {"decision": decision, "digest": request["digest"], **more}


async def test_P6_another_process_lists_and_decides_what_the_user_is_asked(tmp_path: Path) -> None:
    async with scene(tmp_path) as (person, runtime, turn, elsewhere):
        here = Scene(person, runtime, turn, elsewhere)
        for decision, more, result in (
            ("approve", {}, "echo hi"),
            ("deny", {"reason": "no"}, "Tool skipped by user: no"),
            ("edit", {"value": {"text": "ho"}}, "echo ho"),
        ):
            running = asyncio.create_task(texts(turn, call("echo", text="hi")))
            (request,) = await here.posted()
            prompt = await person.sees()
            assert request["id"] == prompt.request and request["digest"] == prompt.digest
            assert (request["kind"], request["arguments"], request["until"]) == ("permission", {"text": "hi"}, "turn")
            assert await elsewhere.request(request["id"]) == request and await elsewhere.requests.count() == 1
            wrong = await elsewhere.decide(request["id"], say(request, "edit", value={"txt": "ho"}), "a test")
            assert wrong["status"] == "again" and "`txt`" in str(wrong["problem"])
            changed = await elsewhere.decide(request["id"], {"decision": "approve", "digest": "0" * 32}, "a test")
            assert changed["status"] == "again" and "changed" in str(changed["problem"])
            assert person.open == [prompt] and not running.done()
            assert (await elsewhere.decide(request["id"], say(request, decision, **more), "a test"))[
                "status"
            ] == "taken"
            assert await running == [result]
            assert person.open == [] and person.withdrawn[-1] == prompt
            assert (await elsewhere.decide(request["id"], say(request, decision), "a test"))["status"] == "gone"
            assert await here.posted(0) == []
        running = asyncio.create_task(texts(turn, call("private")))
        (request,) = await here.posted()
        assert (request["kind"], request["result"]) == ("result", "a secret")
        assert (await elsewhere.decide(request["id"], say(request, "deny"), "a test"))["status"] == "taken"
        assert await running == ["Result delivery skipped by user."]


async def test_P6_the_process_that_asks_lists_its_prompts_at_once_however_its_user_is_asked() -> None:
    person = Person()
    async with Runtime(TOOLS, prompter=person) as rt, rt.turn("main") as turn:
        control = Control(rt)
        running = asyncio.create_task(texts(turn, call("echo", text="hi"), call("asks")))
        prompt = await person.sees()
        permission, question = await control.requests.page()
        assert (permission["id"], permission["kind"], question["kind"]) == (prompt.request, "permission", "question")
        assert await control.requests.count() == 2 and await control.request(question["id"]) == question
        answer = {"decision": "answer", "value": True}
        assert (await control.decide(question["id"], answer))["status"] == "taken", "it was not shown yet"
        assert (await control.decide(permission["id"], say(permission, "approve")))["status"] == "taken"
        assert await running == ["echo hi", "sure True"]
        assert len(person.seen) == 1 and person.open == [] and await control.requests.page() == []


async def test_P6_a_permission_to_use_a_handle_names_it_and_does_not_hold_it_up(tmp_path: Path) -> None:
    guarded = replace(echo, run="unattended", run_actions={"fetch": "ask"}, resources=("one",))

    @keephold.tool(resources=("one",), actions=STATEFUL)
    async def holds() -> str:
        await asyncio.Event().wait()
        return ""

    async with scene(tmp_path, [guarded, holds]) as here:
        await texts(here.turn, spawn("holds", "h"), spawn("echo", "e", text="x"))
        uid = (await here.runtime.handle("e", conversation="main")).uid
        running = asyncio.create_task(texts(here.turn, fetch("echo", "e")))
        (request,) = await here.posted()
        for control in (here.elsewhere, Control(here.runtime)):
            assert request["handle"] == uid and await control.requests.page(handle=uid) == [request]
            described = await control.runtime_view.handle(uid)
            assert described["state"] == "pending" and all(each["by"] != "permission" for each in described["held_up"])
        await here.person.says(Approved())
        await running


async def test_P6_the_first_decision_counts(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        running = asyncio.create_task(texts(here.turn, call("echo", text="hi")))
        (request,) = await here.posted()
        await here.person.says(Denied("mine"))
        assert await running == ["Tool skipped by user: mine"]
        late = await here.elsewhere.decide(request["id"], say(request, "approve"), "a test")
        assert late["status"] == "gone"


async def test_P5_an_approval_is_for_the_arguments_that_the_process_has_not_for_those_of_the_row(
    tmp_path: Path,
) -> None:
    """Somebody who can write the store shows the user another call."""
    async with scene(tmp_path) as here:
        running = asyncio.create_task(texts(here.turn, call("echo", text="evil")))
        (request,) = await here.posted()
        prompt = await here.person.sees()
        forged = keephold.prompts.RunTool(
            tool="echo", action=None, id=None, arguments={"text": "good"}, conversation="main", digest=prompt.digest
        )
        await here.runtime.registry.write((Posted(request["id"], "prompt", 0.0, to_json(forged)),))
        (shown,) = await here.posted()
        assert shown["arguments"] == {"text": "good"}
        assert (await here.elsewhere.decide(shown["id"], say(shown, "approve"), "a test"))["status"] == "again"
        assert here.person.open == [prompt]
        await here.person.says(Denied())
        await running


async def test_P6_what_is_decided_at_once_is_never_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "POST_SECS", PATIENCE)  # a moment, also for a busy machine
    async with scene(tmp_path) as here:
        written: list[Any] = []
        store: Any = here.runtime.registry.store
        commit = store.commit

        def noted(ops: Any, *rest: Any, **more: Any) -> None:
            written.extend(ops)
            commit(ops, *rest, **more)

        here.runtime.registry.commit = noted
        here.person.ready.extend([Approved()] * 5)
        assert await texts(here.turn, *(call("echo", text=each) for each in "abcde")) == [f"echo {x}" for x in "abcde"]
        assert not any(isinstance(op, Posted) for op in written)


async def test_P6_standing_permissions_are_listed_everywhere_and_revoked(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        person, turn, elsewhere = here.person, here.turn, here.elsewhere
        control = Control(here.runtime)
        person.ready.append(Approved(remember=True))
        assert await texts(turn, call("echo", text="a")) == ["echo a"]
        person.ready.append(Answer(True, remember=True))
        assert await texts(turn, call("asks")) == ["sure True"]
        await here.runtime.registry.write(())
        listed = await elsewhere.permissions()
        assert listed == await control.permissions()
        permission, answer = listed
        assert (permission["kind"], permission["tool"], permission["value"]) == ("permission", "echo", True)
        assert (permission["conversation"], permission["until"]) == ("main", "turn")
        assert (permission["by"], permission["arguments"]) == ("the user", {"text": "a"})
        assert (answer["kind"], answer["question"], answer["value"]) == ("answer", "sure", True)
        assert await texts(turn, call("echo", text="b"), call("asks")) == ["echo b", "sure True"]
        assert len(person.seen) == 2, "nobody was asked again"
        assert await elsewhere.revoke_permission(permission["id"]) == {"revoked": True}
        assert await elsewhere.revoke_permission(permission["id"]) == {"revoked": False}
        assert await control.permissions() == [answer]
        running = asyncio.create_task(texts(turn, call("echo", text="c")))
        (request,) = await here.posted()
        assert (await elsewhere.decide(request["id"], say(request, "approve", remember=True), "me"))[
            "status"
        ] == "taken"
        assert await running == ["echo c"]
        (given,) = [each for each in await elsewhere.permissions() if each["tool"] == "echo"]
        assert given["by"] == "me"
    async with Runtime(store=f"sqlite:///{tmp_path / 'store.db'}") as later:
        assert await Control(later).permissions() == [], "they end with their turn"


async def test_P6_without_a_turn_a_permission_holds_until_it_is_revoked(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        queue = here.runtime.call_queue("mcp")
        here.person.ready.append(Denied(remember=True))
        assert (await queue.call(call("echo", text="a"))).result == "Tool skipped by user."
        assert getattr(here.person.seen[-1], "until", None) == "revoked"
        assert (await queue.call(call("echo", text="b"))).result == "Tool skipped by user (remembered)."
        (permission,) = await Control(here.runtime).permissions()
        assert (permission["value"], permission["until"], permission["conversation"]) == (False, "revoked", "mcp")
        assert await Control(here.runtime).revoke_permission(permission["id"]) == {"revoked": True}
        here.person.ready.append(Approved())
        assert (await queue.call(call("echo", text="c"))).result == "echo c"


async def test_P6_a_handle_says_what_allowed_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        control = Control(here.runtime)

        async def allowed(id: str) -> Any:
            fact = await control.runtime_view.handle(id, "main")
            return fact["allowed_by"]

        here.person.ready.extend([Approved(by="ann"), Approved(remember=True)])
        await texts(here.turn, spawn("echo", "one", text="x"))
        await texts(here.turn, spawn("echo", "two", text="x"))
        await texts(here.turn, spawn("echo", "three", text="x"))
        one, two, three = [await allowed(id) for id in ("one", "two", "three")]
        assert (one["by"], one["who"], one["permission"]) == ("user", "ann", None) and one["at"] is not None
        assert (two["by"], two["who"]) == ("user", "the user")
        (permission,) = await control.permissions()
        assert (three["by"], three["permission"]) == ("standing", permission["id"])
        here.person.ready.append(Denied())
        await control.revoke_permission(permission["id"])
        await texts(here.turn, spawn("echo", "four", text="x"))
        assert await allowed("four") is None, "it never ran"
