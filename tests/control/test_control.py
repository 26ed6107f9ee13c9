"""Acting on handles from outside: whoever runs them, the same words and the same answers."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.control.places import PLACES, controlled, uid_of
from tests.durable.lives import approval, ok, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, call, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Key, Question, Runtime
from keephold.control.control import Control
from keephold.control.store_view import PAGE
from keephold.handles.state import Running, Waiting
from keephold.store.base import Inquired, Journaled, Registered
from keephold.testing.conformance.suite import record, uid
from keephold.tools.base import QuestionPolicy
from keephold.turn.prompt_queue import FromList
from keephold.turn.prompts import RunTool

Places = pytest.mark.parametrize("place", PLACES)
Stores = pytest.mark.parametrize("place", PLACES[:2])


@keephold.tool(actions=TALKING)
async def talk(call: Call) -> str:
    """Says again what it is told, until that is `bye`."""
    call.emit("hello\n")
    while (line := await call.input()) != "bye":
        call.emit(f"you said {line}\n")
    return "bye"


@keephold.tool(actions=TALKING, questions={"sure": QuestionPolicy(exclusive=True)})
async def asks(call: Call, answer_type: Any = "Boolean", secret: bool = False) -> str:
    question = Question(id="sure", text="Sure?", answer_type="Text" if secret else answer_type, secret=secret)
    return f"answer {json.dumps(await call.ask(question))}"


@keephold.tool(actions=STATEFUL)
async def breaks() -> str:
    raise keephold.ToolError("x" * 300, code="tool_error")


@keephold.tool(actions=STATEFUL, on_crash="replay")
async def steps(call: Call) -> str:
    fx = call.durable()

    async def double(given: Any) -> Any:
        return {"twice": given["n"] * 2}

    await fx.run_json("double", {"n": 21}, double)
    return "done"


TOOLS = [talk, asks, breaks]


async def refused(doing: Any) -> str:
    with pytest.raises(KeepholdError) as error:
        await doing
    assert error.value.message
    return error.value.code


@Places
async def test_C6_a_person_talks_to_a_handle_whoever_runs_it(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, TOOLS) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("talk", "t")])
        uid = await uid_of(rt, "t")
        reply = await control.apply(uid, "one")
        assert (reply["id"], reply["state"]) == ("t", "running") and "you said one" in reply["content"]
        assert await refused(control.apply(uid)) == "invalid_arguments"
        assert await refused(control.apply(uid, keys=["ENTER"])) == "invalid_arguments"
        assert await refused(control.answer(uid, "yes")) == "not_running"
        assert (await control.apply(uid, "bye"))["result"] == "bye"
        assert await refused(control.apply(uid, "more")) == "not_running"
        fact = await control.runtime_view.handle(uid)
        assert (fact["state"], fact["ok"], fact["outcome"]) == ("stopped", True, {"type": "ok", "value": "bye"})
        assert (fact["owner"], fact["here"], fact["output_bytes"]) == (None, False, len("hello\nyou said one\n"))


@Places
@pytest.mark.parametrize(
    ("arguments", "wrong", "right", "answer"),
    [
        ({}, "maybe", True, "true"),
        ({}, 3, "no", "false"),
        ({"answer_type": "Text"}, None, "well", '"well"'),
        ({"answer_type": {"Select": {"options": ["a", "b"]}}}, "c", "2", '"b"'),
        ({"answer_type": {"Select": {"options": ["a", " b "]}}}, "b", " b ", '" b "'),
        ({"secret": True}, None, "pass word", '"pass word"'),
    ],
)
async def test_Q4_a_person_answers_what_only_a_person_may(
    place: str, arguments: dict[str, Any], wrong: Any, right: Any, answer: str, tmp_path: Path
) -> None:
    async with controlled(place, tmp_path, [asks]) as (control, rt):
        rt.prompt_queue._prompter = lambda prompt: asyncio.Event().wait()  # type: ignore[assignment, return-value]
        async with rt.turn("main") as turn:
            await turn.run([spawn("asks", "a", **arguments)])
            uid = await uid_of(rt, "a")
            question = (await until(lambda: waiting(control, uid)))["question"]
            assert (question["id"], question["secret"]) == ("sure", bool(arguments.get("secret")))
            if wrong is not None:
                assert await refused(control.answer(uid, wrong)) == "bad_answer"
            assert await refused(control.answer(uid, right, question="another")) == "not_running"
            reply = await control.answer(uid, right, question="sure")
            assert reply["state"] in ("running", "stopped")
            await rt.wait(all=["a"], conversation="main")
            assert (await control.runtime_view.handle(uid))["outcome"]["value"] == f"answer {answer}"
            assert await refused(control.answer(uid, right)) == "not_running"


async def waiting(control: Control, uid: str) -> dict[str, Any] | None:
    fact = await control.runtime_view.handle(uid)
    return fact if fact["state"] == "waiting" else None


@pytest.mark.parametrize("decision", ["answer", "cancel"])
async def test_the_questions_of_other_processes_are_among_what_needs_a_person(decision: str, tmp_path: Path) -> None:
    async with controlled("elsewhere", tmp_path, TOOLS) as (control, rt), rt.turn("main") as turn:
        prompts: list[Any] = []

        async def prompter(prompt: Any) -> Any:
            prompts.append(prompt)
            await asyncio.Event().wait()

        rt.prompt_queue._prompter = prompter
        await turn.run([spawn("asks", "a"), spawn("asks", "s", secret=True)])
        both = await until(lambda: needs(control, 2))
        assert [need["kind"] for need in both] == ["question", "secret"]
        assert both[0]["handle"] == await uid_of(rt, "a") and both[0]["handle_id"] == "a"
        assert not both[0]["may_remember"] and both[0]["question"]["id"] == "sure"
        id = both[0]["id"]
        assert id == prompts[0].request, "the owner lists it by the same id"
        for wrong in ({}, {"decision": "approve"}, {"decision": "answer", "value": "maybe"}, {"decision": "answer"}):
            told = await control.decide(id, wrong)
            assert told["status"] == "again" and told["problem"], wrong
        assert await control.decide(id, {"decision": decision, "value": True}) == {"status": "taken", "problem": None}
        if decision == "answer":
            await rt.wait(all=["a"], conversation="main")
        assert (await control.decide(id, {"decision": "answer", "value": True}))["status"] == "gone"
        assert (await control.decide("handle-unknown", {"decision": decision, "value": True}))["status"] == "gone"
        assert (await rt.handle("a", conversation="main")).ended_by == "self"
        (left,) = await until(lambda: needs(control, 1))
        assert left["kind"] == "secret"


async def needs(control: Control, count: int) -> list[dict[str, Any]] | None:
    found = await control.requests.page()
    return sorted(found, key=lambda need: str(need["handle_id"])) if len(found) == count else None


@Places
async def test_C7_abort_ends_a_handle_whoever_runs_it_and_twice_is_harmless(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, TOOLS) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("talk", "t"), spawn("breaks", "b"), wait_all("b")])
        uid = await uid_of(rt, "t")
        for _ in range(2):
            reply = await control.abort(uid)
            assert (reply["state"], reply["ended_by"]) == ("stopped", "abort")
        assert (await control.runtime_view.handle(uid))["message"] == "Aborted by a person."
        failed = await control.abort(await uid_of(rt, "b"))
        assert failed["state"] == "stopped"
        fact = await control.runtime_view.handle(await uid_of(rt, "b"))
        assert (fact["ok"], fact["ended_by"], fact["code"]) == (False, "self", "tool_error")
        assert len(fact["message"]) == 200 and fact["outcome"]["message"] == "x" * 300
        assert await refused(control.abort("unknown")) == "handle_not_found"


@Places
async def test_A3_waiting_by_uid_and_by_id(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, TOOLS) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("talk", "t"), spawn("talk", "u")])
        one, two = await uid_of(rt, "t"), await uid_of(rt, "u")
        waits = [
            asyncio.create_task(control.wait(all=[one, two])),
            asyncio.create_task(control.wait(any=["t", "u"], conversation="main")),
            asyncio.create_task(control.wait(all=[one], any=[two, one])),
        ]
        timed_out = await control.wait(all=[one], timeout=0)
        assert timed_out["timed_out"] and [each["id"] for each in timed_out["pending"]] == ["t"]
        await control.apply(one, "bye")
        any_of, both = await waits[1], await waits[2]
        assert [each["id"] for each in any_of["completed"]] == ["t"] == [each["id"] for each in both["completed"]]
        assert not waits[0].done()
        await control.apply(two, "bye")
        assert [each["result"] for each in (await waits[0])["completed"]] == ["bye", "bye"]
        assert await refused(control.wait()) == "invalid_arguments"
        assert await refused(control.wait(all=["t"])) == "handle_not_found"
        assert await refused(control.wait(all=[one, "x"], conversation="main")) == "handle_not_found"


@Places
async def test_who_waits_for_a_handle_is_told(place: str, tmp_path: Path) -> None:
    gate = asyncio.Event()

    @keephold.tool(actions=STATEFUL)
    async def build() -> str:
        await gate.wait()
        return "built"

    async with controlled(place, tmp_path, [build]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("build", "b"), spawn("build", "c")])
        uid, other = await uid_of(rt, "b"), await uid_of(rt, "c")
        running = asyncio.create_task(turn.run([wait_all("b", "c")]))
        (waiter,) = await until(lambda: control.runtime_view.waiters(uid))
        assert (waiter["kind"], waiter["conversation"]) == ("await", "main") and waiter["since"] > 0
        assert await control.runtime_view.waiters(other) == [waiter]
        calls = await control.runtime_view.calls("main")
        assert [each["tool"] for each in calls] == ["build", "build", "await"]
        assert [each["waits_on"] for each in calls] == [[], [], ["b", "c"]]
        assert [each["batch"] for each in calls] == [1, 1, 2] and calls[2]["uid"] == waiter["uid"]
        assert await control.runtime_view.calls("main", "another turn") == []
        gate.set()
        await running
        assert await control.runtime_view.waiters(uid) == []
        assert await refused(control.runtime_view.waiters("unknown")) == "handle_not_found"


@Stores
async def test_D3_keys_are_named_and_never_shown_whatever_is_asked(place: str, tmp_path: Path) -> None:
    keys: list[Key] = []
    async with controlled(place, tmp_path, [approval(keys), *TOOLS]) as (control, rt):
        async with rt.turn("main") as turn:
            await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        async with rt.turn("other") as turn:
            await turn.run([spawn("approve", "c")])
        await until(lambda: parked(control, 3))
        open_keys = (await control.store_view.keys())["keys"]
        assert {(key["id"], key["conversation"], key["kind"]) for key in open_keys} == {
            ("a", "main", "completion"), ("b", "main", "completion"), ("c", "other", "completion")
        }  # fmt: skip
        assert [key["id"] for key in (await control.store_view.keys("other"))["keys"]] == ["c"]
        said = [await everything(control, each) for each in ("main", "other")]
        assert await control.complete(str(keys[0]), ok("yes")) == {
            "status": "accepted", "terminal": None
        }  # fmt: skip
        said.append(await everything(control, "main"))
        for key in keys:
            assert str(key) not in "".join(said)
        again = await control.complete(str(keys[0]), ok("no"))
        assert again["status"] == "already_resolved" and again["terminal"]
        assert (await control.complete("not a key", ok("no")))["status"] == "unknown_or_revoked"
        assert await refused(control.complete(str(keys[1]), {"status": "fine"})) == "invalid_resolution"
        assert await control.revoke("main") == {"revoked": 1} and await control.revoke("main") == {"revoked": 0}
        assert (await control.complete(str(keys[1]), ok("no")))["status"] == "unknown_or_revoked"
        assert [key["id"] for key in (await control.store_view.keys())["keys"]] == ["c"]


@Stores
async def test_D3_keys_are_listed_by_the_page_and_counted(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [approval([])]) as (control, rt):
        for name in ("main", "other"):
            async with rt.turn(name) as turn:
                await turn.run([spawn("approve", f"{name}-{number}") for number in range(5)])
        await until(lambda: parked(control, 10))
        found: list[str] = []
        after, sizes = None, []
        while True:
            page = await control.store_view.keys(after=after, limit=4)
            found += [key["id"] for key in page["keys"]]
            sizes.append(len(page["keys"]))
            after = page["next"]
            if after is None:
                break
        assert sizes == [4, 4, 2] and sorted(found) == sorted(
            f"{name}-{number}" for name in ("main", "other") for number in range(5)
        )
        assert await control.store_view.store.count_open_waits(["main", "nowhere"]) == {"main": 5, "nowhere": 0}
        assert await control.revoke("main") == {"revoked": 5}
        assert await control.store_view.store.count_open_waits(["main", "other"]) == {"main": 0, "other": 5}


@Stores
async def test_E3_a_long_journal_is_read_from_its_end(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, []) as (control, rt):
        ops = [Journaled(uid(1), 1, "step", f"s{number}", b"", b"%d" % number) for number in range(PAGE + 5)]
        await rt.registry.write((Registered(record(1, state=Running(1.0, 1.0))), *ops))
        shown = await control.runtime_view.handle(uid(1))
        assert shown["journal_entries"] == PAGE + 5 and len(shown["journal"]) == PAGE
        assert (shown["journal"][0]["value"], shown["journal"][-1]["value"]) == (5, PAGE + 4), "in the order they came"
        newest = await control.store_view.journal(uid(1), limit=3)
        assert [entry["value"] for entry in newest["entries"]] == [PAGE + 4, PAGE + 3, PAGE + 2]
        assert newest["count"] == PAGE + 5
        found, page = list(newest["entries"]), newest
        while page["next"] is not None:
            page = await control.store_view.journal(uid(1), before=page["next"])
            found += page["entries"]
        assert [entry["value"] for entry in reversed(found)] == list(range(PAGE + 5))


@Stores
async def test_Q6_the_newest_inquiries_are_shown(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, []) as (control, rt):
        asked = [
            Inquired(id=f"q{number}", conversation="main", turn="t", uid=None, at=1.0, request={})
            for number in range(30)
        ]
        await rt.registry.write(tuple(asked))
        assert [each["id"] for each in await control.store_view.inquiries("main", 3)] == ["q29", "q28", "q27"]


async def parked(control: Control, count: int) -> bool:
    return bool((await control.runtime_view.stats())["handles"]["parked"] == count)


async def everything(control: Control, conversation: str) -> str:
    """All that can be read, as text."""
    handles = (await control.store_view.handles(oneshot=True))["handles"]
    found: list[Any] = [
        handles,
        await control.requests.page(),
        await control.store_view.keys(),
        await control.runtime_view.stats(),
    ]
    for handle in handles:
        uid = handle["uid"]
        found += [
            await control.runtime_view.handle(uid),
            await control.store_view.timeline(uid),
            await control.store_view.journal(uid),
        ]
        found += [await control.runtime_view.waiters(uid), await control.output(uid)]
    found += [
        await control.store_view.conversations(),
        await control.store_view.conversation(conversation),
        await control.runtime_view.tools(),
    ]
    found += [
        await control.runtime_view.calls(conversation),
        await control.store_view.transcript(conversation),
        await control.store_view.notifications(),
    ]
    return json.dumps(found)


@Stores
async def test_pages_of_handles_have_each_of_them_once(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, TOOLS) as (control, rt):
        for number in range(3):
            async with rt.turn(f"c{number}") as turn:
                await turn.run([spawn("breaks", f"b{each}") for each in range(4)] + [call("breaks")])
        everyone = (await control.store_view.handles(limit=PAGE))["handles"]
        assert len(everyone) == 12 and len((await control.store_view.handles(oneshot=True))["handles"]) == 15
        for sort in ("newest", "oldest", "stopped", "tool", "id"):
            seen: list[str] = []
            after = None
            for _ in range(5):
                page = await control.store_view.handles(sort=sort, after=after, limit=3)
                seen += [fact["uid"] for fact in page["handles"]]
                after = page["next"]
                if after is None:
                    break
            assert sorted(seen) == sorted(fact["uid"] for fact in everyone), sort
        assert len((await control.store_view.handles(conversation="c1"))["handles"]) == 4
        assert len((await control.store_view.handles(search="break"))["handles"]) == 12
        assert (
            (await control.store_view.handles(state="live"))["handles"]
            == []
            == (await control.store_view.handles(tool="talk"))["handles"]
        )
        assert (await control.store_view.handles(limit=0))["next"] is not None and len(
            (await control.store_view.handles(limit=-3))["handles"]
        ) == 1
        for wrong in ({"state": "x"}, {"kind": "x"}, {"sort": "x"}):
            assert await refused(control.store_view.handles(**wrong)) == "invalid_arguments"  # type: ignore[arg-type]


@Stores
async def test_a_handle_is_found_by_uid_or_by_id_and_conversation(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [*TOOLS, steps]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("breaks", "b"), spawn("steps", "s"), wait_all("b", "s")])
        uid = await uid_of(rt, "b")
        assert await control.runtime_view.handle(uid) == await control.runtime_view.handle("b", "main")
        assert (
            await refused(control.runtime_view.handle("b"))
            == await refused(control.runtime_view.handle("b", "other"))
            == "handle_not_found"
        )
        timeline = await control.store_view.timeline(uid)
        assert next(each["type"] for each in timeline) == "handle.created" and timeline[-1]["seq"] > timeline[0]["seq"]
        if place == "sqlite":
            (entry,) = (await control.store_view.journal(await uid_of(rt, "s")))["entries"]
            entry.pop("at")
            assert entry == {"kind": "step", "name": "double", "ok": True, "input": {"n": 21}, "value": {"twice": 42}}
        assert await refused(control.runtime_view.workflow(uid)) == "invalid_arguments"


@Stores
async def test_conversations_come_in_pages_with_their_turns(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, TOOLS) as (control, rt):
        for number in range(5):
            async with rt.turn(f"c{number}") as turn:
                await turn.run([spawn("breaks", "b")])
        async with rt.turn("c0") as turn:
            await turn.run([call("breaks")])
            first = await control.store_view.conversations(limit=2)
            assert [each["id"] for each in first["conversations"]] == ["c0", "c1"] and first["next"] == "c1"
            assert [each["turn_open"] for each in first["conversations"]] == [True, False]
            rest = await control.store_view.conversations(after=first["next"])
            assert [each["id"] for each in rest["conversations"]] == ["c2", "c3", "c4"] and rest["next"] is None
            page = await control.store_view.conversation("c0", limit=1)
            assert len(page["turns"]) == 1 and page["turns"][0]["ended"] is None and page["turns"][0]["batches"] == 1
            older = await control.store_view.conversation("c0", before=page["next"])
            assert [each["ended"] is None for each in older["turns"]] == [False] and older["next"] is None
        assert await refused(control.store_view.conversation("nowhere")) == "conversation_not_found"
        assert await control.store_view.transcript("nowhere") == {"lines": [], "next": None}
        assert await control.forget("nowhere") == {"lines": 0}


@Stores
async def test_W9_news_is_shown_while_it_waits_and_afterwards(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, TOOLS) as (control, rt):
        for number in range(5):
            await rt.notifications.notify("note.news", "info", f"news {number}", "main")
        await rt.notifications.notify("note.news", "warning", "elsewhere", "other")
        everything = await control.store_view.notifications()
        assert {each["message"] for each in everything["queued"]} == {f"news {each}" for each in range(5)} | {
            "elsewhere"
        }
        page = await control.store_view.notifications("main", limit=2)
        assert [each["data"]["message"] for each in page["history"]] == ["news 4", "news 3"]
        more = await control.store_view.notifications("main", before=page["next"])
        assert [each["data"]["message"] for each in more["history"]] == ["news 2", "news 1", "news 0"]
        assert more["next"] is None
        async with rt.turn("main") as turn:
            await turn.run([call("breaks")])
        assert [each["conversation"] for each in (await control.store_view.notifications())["queued"]] == ["other"]
        told = (await control.store_view.notifications("main"))["history"][0]
        assert told["type"] == "notification.delivered" and told["data"]["carrier"]


async def test_K5_stats_and_tools_say_what_there_is(tmp_path: Path) -> None:
    async with controlled("sqlite", tmp_path, TOOLS) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("talk", "t"), spawn("breaks", "b"), wait_all("b")])
        stats = await control.runtime_view.stats()
        assert stats["handles"] == {"pending": 0, "running": 1, "waiting": 0, "stopped": 1, "parked": 0}
        assert stats["store"]["bytes"] > 0 and stats["store"]["last_event"] >= stats["store"]["first_event"] == 1
        named = {tool["name"]: tool for tool in await control.runtime_view.tools()}
        assert {"talk", "asks", "breaks", "await"} <= set(named) and named["talk"]["actions"] == list(TALKING)


@Places
async def test_C6_a_person_may_close_the_input_of_a_tool(place: str, tmp_path: Path) -> None:
    @keephold.tool(actions=TALKING)
    async def lines(call: Call) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(EOFError):
            while True:
                found.append(str(await call.input()))
        return found

    async with controlled(place, tmp_path, [lines]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("lines", "s")])
        uid = await uid_of(rt, "s")
        await control.apply(uid, "one")
        assert await refused(control.apply(uid)) == "invalid_arguments"
        assert await refused(control.apply(uid, None, ["ENTER"])) == "invalid_arguments"
        await control.apply(uid, None)
        assert (await control.wait(all=[uid]))["completed"][0]["result"] == ["one"]


async def test_Q1_questions_of_others_are_not_lost_behind_many_of_ones_own(tmp_path: Path) -> None:
    asks = Waiting(1.0, 1.0, 1.0, Question(id="sure", text="Sure?", answer_type="Boolean"), 1)
    own, others = range(1, 1101), range(1101, 1104)
    async with Runtime(store=stored_in(tmp_path)) as rt, Runtime(store=stored_in(tmp_path)) as other:
        await rt.registry.write([Registered(record(number, state=asks)) for number in own])
        await other.registry.write([Registered(record(number, state=asks)) for number in others])
        control = Control(rt)
        assert [need["handle"] for need in await control.requests.page()] == [uid(number) for number in others]
        assert await control.requests.count() == len(others)
        for number in (own[0], others[0]):
            need = await control.requests.get(f"handle-{uid(number)}-1")
            assert (need is not None) is (number in others), "of its own it would have a prompt"
        assert await control.requests.get(f"handle-{uid(others[0])}-2") is None, "another question"
        assert await Control(other).requests.count() == len(own) and len(await Control(other).requests.page()) == PAGE


async def test_Q1_what_was_asked_first_comes_first_whoever_asks(tmp_path: Path) -> None:
    asks = Waiting(1.0, 1.0, 1.0, Question(id="sure", text="Sure?", answer_type="Boolean"), 1)
    prompts = [
        RunTool(tool="t", action=None, id=None, arguments={}, conversation="main", uid=f"u{each}") for each in range(9)
    ]
    async with (
        Runtime(store=stored_in(tmp_path), prompter=FromList()) as rt,
        Runtime(store=stored_in(tmp_path)) as other,
    ):
        asking = [rt.prompt_queue.ask(prompt, lambda _: None) for prompt in prompts]
        await other.registry.write((Registered(record(1, state=asks)),))
        listed = await Control(rt).requests.page(limit=5)
        assert [need["handle"] for need in listed] == [uid(1), "u0", "u1", "u2", "u3"]
        for each in asking:
            each.withdraw()


async def test_R1_of_a_process_that_is_gone_it_is_said_so(tmp_path: Path) -> None:
    """A copy of what a power cut left: the owner of the handle is nobody who lives."""
    from tests.durable.lives import power_cut

    async with Runtime(TOOLS, store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "t")])
        uid, after = await uid_of(rt, "t"), power_cut(stored_in(tmp_path))
        async with Runtime(store=after) as looking:  # without the tool it leaves the handle alone
            control = Control(looking)
            fact = await control.runtime_view.handle(uid)
            if fact["state"] != "stopped":
                assert fact["owner"] == "gone"
                assert await refused(control.apply(uid, "x")) in ("owner_not_answering", "not_running")
            assert (await control.output(uid))["text"] in ("", "hello\n")
