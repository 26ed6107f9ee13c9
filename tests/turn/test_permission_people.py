"""Permission to run, asked of a person who is there (P1–P3, P5)."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import (
    TALKING,
    abort,
    apply,
    call,
    fetch,
    replies,
    reply,
    settings,
    spawn,
    texts,
    wait_all,
)
from tests.turn.people import Person, attended

import keephold
from keephold import Call, Runtime
from keephold.handles.handle import Handle
from keephold.testing import VirtualClock
from keephold.turn.prompts import Answer, Approved, Denied, Dismissed, Edited, RunTool

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@keephold.tool(actions=TALKING, run="ask")
async def work(call: Call, path: str = "a", n: int | None = None, talk: bool = False) -> str:
    ran.append(path)
    return f"said {await call.input()}" if talk else f"did {path}"


@keephold.tool
async def free() -> str:
    ran.append("free")
    return "free"


SKIPPED = "Tool skipped by user."


def handle_of(rt: Runtime, id: str) -> Handle:
    return rt.registry.find(id, "main")


# The modes


@pytest.mark.parametrize("mode", ["ask", "edit"])
@pytest.mark.parametrize("stateful", [False, True])
async def test_P1_a_call_runs_when_the_person_approves(clock: VirtualClock, mode: Any, stateful: bool) -> None:
    person = Person()
    async with attended(clock, [replace(work, run=mode)], person=person) as (_, turn):
        wanted = spawn("work", "w", path="x") if stateful else call("work", path="x")
        batch = asyncio.create_task(turn.run([wanted]))
        prompt = await person.sees()
        assert isinstance(prompt, RunTool) and prompt.digest
        assert (prompt.tool, prompt.action, prompt.id) == (
            "work",
            "spawn" if stateful else None,
            "w" if stateful else None,
        )
        assert (prompt.arguments["path"], prompt.edit, prompt.problem) == ("x", mode == "edit", None)
        await clock.advance(3600)
        assert ran == [] and not batch.done()
        await person.says(Approved())
        await batch
        await clock.advance(1)
        assert ran == ["x"]


@pytest.mark.parametrize("mode", ["unattended", "skip"])
async def test_P1_unattended_and_skip_ask_nobody(clock: VirtualClock, mode: Any) -> None:
    person = Person()
    async with attended(clock, [replace(work, run=mode)], person=person) as (_, turn):
        (result,) = await texts(turn, call("work"))
        assert result == ("did a" if mode == "unattended" else SKIPPED)
        assert person.seen == [] and ran == (["a"] if mode == "unattended" else [])


@pytest.mark.parametrize("policy", ["deny", "defaults", "auto"])
async def test_P2_detached_does_not_matter_while_a_person_is_there(
    clock: VirtualClock, tmp_path: Path, policy: str
) -> None:
    config = settings(tmp_path, f'[conversation]\ndetached = "{policy}"\n')
    async with attended(clock, [work], person=Person(Approved()), config=config) as (_, turn):
        assert await texts(turn, call("work")) == ["did a"]


@pytest.mark.parametrize("stateful", [False, True])
async def test_P1_a_call_is_decided_once_and_a_permission_given_since_covers_it(
    clock: VirtualClock, stateful: bool
) -> None:
    person = Person(Approved())
    decided: list[str] = []

    def is_unattended(conversation: str) -> bool:
        decided.append(conversation)
        return False

    async with attended(clock, [work], person=person) as (rt, turn):
        rt.permission.unattended.append(is_unattended)
        wanted = [spawn("work", id, path=id) if stateful else call("work", path=id) for id in "ab"]
        await turn.run(wanted[:1])
        await clock.advance(1)
        assert (decided, ran, len(person.seen)) == (["main"], ["a"], 1)
        rt.registry.on_created.add(lambda handles: rt.approvals.give("main", "work", True, by="somebody"))
        batch = asyncio.create_task(turn.run(wanted[1:]))
        await clock.advance(1)
        assert (decided, ran, len(person.seen)) == (["main"] * 2, ["a", "b"], 1)
        assert len(await batch) == 1 and rt.approvals.open == {}


async def test_P1_fetch_apply_and_abort_are_unattended(clock: VirtualClock) -> None:
    person = Person(Approved(), Approved())
    async with attended(clock, [work], person=person) as (_, turn):
        await turn.run([spawn("work", "a", talk=True), spawn("work", "b", talk=True)])
        fetched, applied, aborted = await replies(turn, fetch("work", "a"), apply("work", "a", "x"), abort("work", "b"))
        assert (fetched["state"], applied["result"], aborted["ended_by"]) == ("running", "said x", "abort")
        assert len(person.seen) == 2


@pytest.mark.parametrize("action", ["fetch", "apply", "abort"])
async def test_P1_run_actions_asks_for_an_action(clock: VirtualClock, action: Any) -> None:
    named = {"fetch": fetch("work", "w"), "apply": apply("work", "w", "x"), "abort": abort("work", "w")}[action]
    person = Person(Approved())
    async with attended(clock, [replace(work, run_actions={action: "ask"})], person=person) as (rt, turn):
        await reply(turn, spawn("work", "w", talk=True))
        person.ready.append(Denied("not now"))
        (skipped,) = await turn.run([named])
        assert (skipped.is_error, skipped.result) == (False, "Tool skipped by user: not now")
        assert handle_of(rt, "w").info().state == "running"
        prompt = person.seen[-1]
        assert isinstance(prompt, RunTool) and (prompt.action, prompt.id) == (action, "w")
        assert prompt.arguments == ({"input": "x"} if action == "apply" else {})
        person.ready.append(Approved())
        done = await reply(turn, replace_label(named))
        assert done["state"] == ("running" if action == "fetch" else "stopped")


def replace_label(named: keephold.ToolCall) -> keephold.ToolCall:
    """The same call, made again."""
    return keephold.ToolCall(named.id + "-again", named.name, named.arguments)


async def test_C2_Q4_a_persons_own_apply_needs_no_permission(clock: VirtualClock) -> None:
    person = Person(Approved())
    async with attended(clock, [replace(work, run_actions={"apply": "ask"})], person=person) as (rt, turn):
        await reply(turn, spawn("work", "w", talk=True))
        assert (await rt.send("w", "hello", conversation="main"))["result"] == "said hello"
        assert len(person.seen) == 1


# What the person says (P3)


WRONG = "which is not a decision here; this prompt takes Approved, Denied, Edited, Dismissed"


@pytest.mark.parametrize(
    ("said", "result", "code"),
    [
        (Denied(), SKIPPED, None),
        (Denied(""), SKIPPED, None),
        (Denied("wrong file"), "Tool skipped by user: wrong file", None),
        (Dismissed(), SKIPPED, None),
        (Dismissed("no terminal"), "Permission prompt failed: no terminal", "permission_denied"),
        (RuntimeError("gone"), "Permission prompt failed: RuntimeError: gone", "permission_denied"),
        ("yes", f"Permission prompt failed: the prompter returned a str, {WRONG}", "permission_denied"),
        (True, f"Permission prompt failed: the prompter returned a bool, {WRONG}", "permission_denied"),
        (None, f"Permission prompt failed: the prompter returned a NoneType, {WRONG}", "permission_denied"),
    ],
)
async def test_P3_what_is_not_approved_never_runs(
    clock: VirtualClock, said: Any, result: str, code: str | None
) -> None:
    person = Person(said, said)
    async with attended(clock, [work], person=person) as (rt, turn):
        one_shot, spawned, waited = await turn.run([call("work"), spawn("work", "w"), wait_all("w")])
        assert (one_shot.result, one_shot.code, one_shot.is_error) == (result, code, code is not None)
        for shown in (json.loads(spawned.result), json.loads(waited.result)["completed"][0]):  # B6
            assert shown["result"] == result and shown.get("is_error", False) == (code is not None)
        info = await rt.handle("w", conversation="main")
        assert (info.state, info.started, info.ended_by) == ("stopped", None, "self")
    assert ran == []


async def test_P3_a_decision_that_is_none_of_permission_is_no_skip_by_the_user(clock: VirtualClock) -> None:
    async with attended(clock, [work], person=Person(Answer(True))) as (_, turn):
        (response,) = await turn.run([call("work")])
        assert response.code == "permission_denied" and "Answer" in response.result
        assert ran == []


# Remembering (P5)


@pytest.mark.parametrize("yes", [True, False])
async def test_P5_what_is_remembered_covers_the_tool_until_the_turn_ends(clock: VirtualClock, yes: bool) -> None:
    person = Person(Approved(remember=True) if yes else Denied("no", remember=True))
    other = replace(work, name="other")
    remembered = "did a" if yes else "Tool skipped by user (remembered)."
    async with attended(clock, [work, other], person=person) as (rt, turn):
        assert await texts(turn, call("work")) == ["did a" if yes else "Tool skipped by user: no"]
        assert await texts(turn, call("work", n=5)) == [remembered]  # whatever its arguments
        spawned = await reply(turn, spawn("work", "w"))
        assert yes or spawned["result"] == remembered
        assert len(person.seen) == 1
        person.ready.append(Denied())
        assert await texts(turn, call("other")) == [SKIPPED]
        await turn.end()
        async with rt.turn("main") as next_turn:
            person.ready.append(Denied())
            assert await texts(next_turn, call("work")) == [SKIPPED]
        assert len(person.seen) == 3


@pytest.mark.parametrize("yes", [True, False])
async def test_P5_a_remembered_decision_is_that_of_prompts_that_wait_for_their_turn(
    clock: VirtualClock, yes: bool
) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("work", path="a"), call("work", path="b"), spawn("work", "w")]))
        await person.says(Approved(remember=True) if yes else Denied(remember=True))
        await clock.advance(1)
        assert len(person.seen) == 1 and batch.done()
        assert [response.result for response in await batch][1] == (
            "did b" if yes else "Tool skipped by user (remembered)."
        )


async def test_P5_a_yes_after_a_mistake_is_remembered_too(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("work")]))
        prompt = await person.sees()
        prompt.arguments["path"] = "changed"  # what makes it ask again with arguments that are right
        await person.says(Approved(remember=True))
        assert (await person.sees()).problem is not None
        await person.says(Approved(remember=True))
        await batch
        person.ready.append(Denied())
        assert await texts(turn, call("work")) == ["did a"]


async def test_P5_a_yes_to_what_cannot_run_is_not_a_yes_to_what_the_assistant_wanted(clock: VirtualClock) -> None:
    """The person has edited wrongly and says yes to that, for the whole turn: the call they changed must not run."""
    person = Person(Edited({"path": 5}), Approved(remember=True), Denied("never mind"))
    async with attended(clock, [work], person=person) as (_, turn):
        assert await texts(turn, call("work", path="theirs")) == ["Tool skipped by user: never mind"]
    assert ran == [] and len(person.seen) == 3


# Editing (P5)


@pytest.mark.parametrize("mode", ["ask", "edit"])
async def test_P5_edited_arguments_are_what_runs_and_what_is_recorded(clock: VirtualClock, mode: Any) -> None:
    person = Person(Edited({"path": "mine"}), Edited({"path": "mine too", "n": 3}))
    async with attended(clock, [replace(work, run=mode)], person=person) as (rt, turn):
        one_shot, _ = await turn.run([keephold.ToolCall("c1", "work", {"path": "x"}), spawn("work", "w", n=9)])
        assert one_shot.result == "did mine"
        await reply(turn, wait_all("w"))
        assert ran == ["mine", "mine too"]
        store = rt.registry.store
        for handle, arguments in (
            (await rt.registry.find_call("c1", "main"), {"path": "mine"}),
            (handle_of(rt, "w"), {"path": "mine too", "n": 3}),
        ):
            record = await store.handle(handle.uid)
            assert record is not None and arguments.items() <= record.arguments.items()


@pytest.mark.parametrize(
    ("edited", "problem"),
    [
        ({"path": 5}, "path"),
        ({"pth": "x"}, "pth"),
        ({"action": "spawn", "path": "x"}, "action"),
        ({"id": "other", "path": "x"}, "id"),
        ("path=x", "JSON object"),
        (None, "JSON object"),
        ([], "JSON object"),
    ],
)
@pytest.mark.parametrize("stateful", [False, True])
async def test_P5_edited_arguments_are_checked_like_the_assistants_own(
    clock: VirtualClock, stateful: bool, edited: Any, problem: str
) -> None:
    person = Person(Edited(edited), Edited({"path": "right"}))
    async with attended(clock, [work], person=person) as (_, turn):
        await turn.run([spawn("work", "w") if stateful else call("work"), *([wait_all("w")] if stateful else [])])
        assert ran == ["right"]
        first, second = person.seen
        assert isinstance(first, RunTool) and isinstance(second, RunTool)
        assert first.problem is None and second.problem is not None and problem in second.problem
        assert second.arguments == (edited if isinstance(edited, dict) else first.arguments)
        assert (second.tool, second.action, second.id) == (first.tool, first.action, first.id)
        assert second.digest != first.digest or second.arguments == first.arguments


async def test_P5_what_is_shown_can_be_given_back_as_it_is(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (_, turn):
        batch = asyncio.create_task(texts(turn, call("work", path="x")))
        prompt = await person.sees()
        await person.says(Edited(dict(prompt.arguments)))
        assert await batch == ["did x"] and len(person.seen) == 1


async def test_P5_a_null_that_is_edited_in_means_left_out(clock: VirtualClock) -> None:
    """C10 holds for a person's arguments, too."""
    async with attended(clock, [work], person=Person(Edited({"path": None}))) as (_, turn):
        assert await texts(turn, call("work", path="x")) == ["did a"]


@pytest.mark.parametrize(
    ("said", "then"),
    [(Denied("enough"), "Tool skipped by user: enough"), (Dismissed(), SKIPPED), (Edited({}), "did a")],
)
async def test_P5_after_a_mistake_the_person_may_say_anything(clock: VirtualClock, said: Any, then: str) -> None:
    person = Person(Edited({"path": 5}), said)
    async with attended(clock, [work], person=person) as (_, turn):
        assert await texts(turn, call("work", path="x")) == [then]


@pytest.mark.parametrize("edited", [{"path": object()}, {1: "x", "path": "y"}, {"n": [{"deep": object()}]}])
async def test_P5_what_is_edited_and_is_not_json_is_asked_again(clock: VirtualClock, edited: Any) -> None:
    """Nothing a prompter returns may leave the call without its answer."""

    @keephold.tool(run="ask")
    async def takes(path: Any = None, n: Any = None) -> str:
        return "took it"

    person = Person(Edited(edited), Edited({}))
    async with attended(clock, [takes], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("takes")]))
        await clock.advance(60)
        if not batch.done():
            turn.cancel()
        (response,) = await batch
        assert response.result == "took it" and len(person.seen) == 2


async def test_P5_K6_edited_arguments_are_held_to_the_same_limits(clock: VirtualClock) -> None:
    person = Person(Edited({"path": "x" * 2**20}), Edited({"path": "short"}))
    async with attended(clock, [work], person=person) as (_, turn):
        assert await texts(turn, call("work")) == ["did short"]


async def test_P5_an_edited_apply_is_what_is_sent(clock: VirtualClock) -> None:
    person = Person(Approved(), Edited({"input": "better"}))
    async with attended(clock, [replace(work, run_actions={"apply": "edit"})], person=person) as (_, turn):
        await reply(turn, spawn("work", "w", talk=True))
        assert (await reply(turn, apply("work", "w", "worse")))["result"] == "said better"
        prompt = person.seen[1]
        assert isinstance(prompt, RunTool) and prompt.edit and prompt.arguments == {"input": "worse"}


async def test_P5_an_edited_apply_that_cannot_be_sent_is_answered(clock: VirtualClock) -> None:
    person = Person(Approved(), Edited({"input": object()}), Edited({"input": "x"}))
    async with attended(clock, [replace(work, run_actions={"apply": "edit"})], person=person) as (_, turn):
        await reply(turn, spawn("work", "w", talk=True))
        batch = asyncio.create_task(turn.run([apply("work", "w", "worse")]))
        await clock.advance(60)
        if not batch.done():
            turn.cancel()
        (response,) = await batch
        assert response.code != "cancelled"


async def test_P5_an_approval_is_for_these_arguments(clock: VirtualClock) -> None:
    """They change under the prompt: the person is shown what they are now."""
    person = Person()
    async with attended(clock, [work], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([keephold.ToolCall("c1", "work", {"path": "x"})]))
        prompt = await person.sees()
        prompt.arguments["path"] = "/etc/passwd"
        await person.says(Approved())
        again = await person.sees()
        assert again.problem is not None and again.digest != prompt.digest and ran == []
        await person.says(Denied())
        assert (await batch)[0].result == SKIPPED


async def test_P5_the_digest_is_of_tool_action_id_and_arguments(clock: VirtualClock) -> None:
    person = Person(*[Denied()] * 6)
    other = replace(work, name="other")
    calls = [
        call("work", path="x", n=1),
        call("work", n=1, path="x"),
        call("work", path="y", n=1),
        call("other", path="x", n=1),
        spawn("work", "a", path="x", n=1),
        spawn("work", "b", path="x", n=1),
    ]
    async with attended(clock, [work, other], person=person) as (_, turn):
        await turn.run(calls)
    digests = [prompt.digest for prompt in person.seen if isinstance(prompt, RunTool)]
    assert digests[0] == digests[1] and len(set(digests)) == 5
