"""Facts that only the owner of a handle knows, seen from another process (A6, M3): waits end there as they do here."""

import asyncio
from threading import Event
from typing import Any

import pytest
from tests.durable.lives import in_state, only, parsed
from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, abort, apply, replies, reply, spawn, wait_all

import keephold
from keephold import Call, Question, Runtime
from keephold.cli.printing import state_words
from keephold.cli.store_control import Stored
from keephold.control.control import Control
from keephold.handles.state import Progress
from keephold.outcomes import Failure
from keephold.store.postgres.store import ReadOnlyPostgres
from keephold.store.sqlite import SqliteStore
from keephold.store.sqlite.reads import ReadOnlyStore


@keephold.tool(actions=TALKING, on_turn_end="keep")
async def session(call: Call) -> str:
    """Read lines until one is `bye`; ask for one that is `ask`."""
    while (line := await call.input()) != "bye":
        if line == "ask":
            call.emit(f"{await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}\n")
        else:
            call.emit(f"you said {line}\n")
    return "over"


@keephold.tool(actions=TALKING, on_turn_end="keep", scheduling="serial")
async def alone(call: Call) -> str:
    return str(await call.input())


async def kept(rt: Runtime, *calls: keephold.ToolCall) -> None:
    async with rt.turn("main") as turn:
        await turn.run(calls)


async def test_A6_an_await_elsewhere_ends_when_the_handle_reads(store: str) -> None:
    async with Runtime([session], store=store) as one, Runtime([session], store=store) as two:
        await kept(one, spawn("session", "s"))
        for rt in (one, two):
            waited = await rt.wait(all=["s"], timeout=60, conversation="main")
            assert waited["pending"] == [{"id": "s", "state": "running", "waiting_for_input": True}]
            assert waited["needs_input"]
        async with two.turn("main") as turn:
            await reply(turn, apply("session", "s", "hi"))
            assert parsed(await only(turn, wait_all("s")))["needs_input"]
            await reply(turn, apply("session", "s", "bye"))
        assert await two.registry.store.posts("watch") == []
        await until(lambda: not one.registry.facts._told)


async def test_A6_a_look_elsewhere_without_patience(store: str) -> None:
    async with Runtime([session], store=store) as one, Runtime([session], store=store) as two:
        await kept(one, spawn("session", "s"))
        for rt in (one, two):
            assert (await rt.wait(all=["s"], timeout=0, conversation="main"))["needs_input"]
        await one.send("s", "bye", conversation="main")


async def test_A6_a_question_that_only_the_caller_can_answer_and_one_that_a_person_is_asked(store: str) -> None:
    asked = asyncio.Event()

    async def nobody(prompt: object) -> object:
        asked.set()
        await asyncio.Event().wait()
        return None

    async with Runtime([session], store=store) as one, Runtime([session], store=store) as two:
        await kept(one, spawn("session", "s"))
        await one.send("s", "ask", conversation="main")
        waited = await two.wait(all=["s"], timeout=60, conversation="main")
        assert waited["needs_input"] and waited["pending"][0]["question"].id == "sure"
        await one.send("s", True, conversation="main")
        await one.send("s", "bye", conversation="main")
        await two.wait(all=["s"], timeout=60, conversation="main")
    async with (
        Runtime([session], store=store, prompter=nobody) as one,  # type: ignore[arg-type]
        Runtime([session], store=store) as two,
    ):
        await kept(one, spawn("session", "s"))
        await one.send("s", "ask", conversation="main")
        await asked.wait()
        for rt in (one, two):
            waited = await rt.wait(all=["s"], timeout=0.3, conversation="main")
            assert waited["timed_out"] and "needs_input" not in waited
        async with two.turn("main") as turn:
            await reply(turn, abort("session", "s"))


async def test_A6_the_next_in_the_queue_for_the_lane_is_behind_the_same_handle_elsewhere(store: str) -> None:
    async with Runtime([alone], store=store) as one, Runtime([alone], store=store) as two:
        await kept(one, spawn("alone", "a"))
        async with two.turn("main") as turn:
            await replies(turn, spawn("alone", "b"), spawn("alone", "c"))
            for next_one in ("b", "c"):
                waited = parsed(await only(turn, wait_all(next_one, timeout_secs=60)))
                assert waited["needs_input"] and waited["pending"] == [
                    {"id": next_one, "state": "pending", "behind": "a"}
                ]
                await reply(turn, abort("alone", next_one))
        await one.send("a", "bye", conversation="main")


async def test_A6_a_handle_that_queues_elsewhere_behind_one_that_reads(store: str) -> None:
    async with Runtime([alone], store=store) as one, Runtime([alone], store=store) as two:
        await kept(one, spawn("alone", "a"), spawn("alone", "b"))
        for rt in (one, two):
            waited = await rt.wait(all=["b"], timeout=60, conversation="main")
            assert waited["needs_input"] and waited["pending"] == [{"id": "b", "state": "pending", "behind": "a"}]
        for id in ("a", "b"):
            await until(lambda id=id: in_state(two, id, "running"))  # type: ignore[misc]
            await two.send(id, "x", conversation="main")


async def test_A9_a_line_that_was_printed_before_the_handle_read_counts_first(store: str) -> None:
    answers = asyncio.Queue[int]()

    @keephold.tool(actions=TALKING, on_turn_end="keep")
    async def prompting(call: Call) -> str:
        while number := await answers.get():
            call.emit("." * 200_000 + f"\nresult {number}\n> ")
            await call.input()
        return "over"

    async with Runtime([prompting], store=store) as one, Runtime([prompting], store=store) as two:
        await kept(one, spawn("prompting", "p"))
        for number in range(1, 6):
            waiting = [
                asyncio.create_task(rt.wait(output={"p": f"result {number}"}, timeout=60, conversation="main"))
                for rt in (one, two)
            ]
            await until(lambda: len(one.registry.facts._told) == 1)
            answers.put_nowait(number)
            for each in waiting:
                waited = await each
                assert waited["pending"][0]["matched"] == f"result {number}", waited
            await one.send("p", "on", conversation="main")
        answers.put_nowait(0)


async def seen(rt: Runtime, id: str) -> list[object]:
    """Everything that a process says of a handle, by each way to ask for it."""
    info = await rt.handle(id, conversation="main")
    (listed,) = [each for each in await rt.handles(conversation="main") if each.id == id]
    view = Control(rt).runtime_view
    (row,) = [each for each in (await view.store_view.handles())["handles"] if each["id"] == id]
    (called,) = [each for each in await view.calls("main") if each["id"] == id]
    details = await view.handle(info.uid)
    store: Any = rt.registry.store
    looking = ReadOnlyStore(store.path) if isinstance(store, SqliteStore) else ReadOnlyPostgres(store.address)
    await looking.open(lambda _: None)
    try:
        (glance,) = await Stored(looking).find([info.uid], None)
    finally:
        await looking.close()
    known = [(each.driver, each.lingering, each.ready, each.progress) for each in (info, listed)]
    shown = [[each[key] for key in ("driver", "lingering", "ready", "progress")] for each in (row, called, details)]
    words = state_words(glance, 0.0)
    return [known, shown, [glance[key] for key in ("driver", "lingering", "ready", "progress")], words]


@pytest.mark.parametrize("what", ["driver", "lingering", "ready", "progress"])
async def test_M3_every_process_says_the_same_of_a_handle(
    store: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("keephold.tools.run.FORCE_SECS", 0.01)
    gate, done = asyncio.Event(), Event()

    @keephold.tool(actions=STATEFUL, on_turn_end="keep", ready="^up$")
    async def work(call: Call) -> str:
        if what == "ready":
            call.emit("up\n")
        if what == "progress":
            call.progress(1, 2, "half")
        await gate.wait()
        return "over"

    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    def stubborn(call: Call) -> str:
        done.wait()
        return "over"

    tools = [work, stubborn]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        await kept(one, spawn("stubborn" if what == "lingering" else "work", "h"))
        (handle,) = one.registry.live("main")
        assert handle.run is not None
        if what == "driver":
            handle.run.drive(True)
        elif what == "lingering":
            handle.run.end(Failure("Aborted.", "aborted"), "abort")
        field = {"driver": "person", "progress": Progress(1, 2, "half")}.get(what, True)

        async def known() -> bool:
            infos = [await rt.handle("h", conversation="main") for rt in (one, two)]
            return all(getattr(info, what) == field for info in infos)

        await until(known)
        assert await seen(one, "h") == await seen(two, "h")
        if what == "driver":
            handle.run.drive(False)
        done.set()
        gate.set()

        async def over() -> bool:
            infos = [await rt.handle("h", conversation="main") for rt in (one, two)]
            return all(info.state == "stopped" and not info.lingering and info.driver is None for info in infos)

        await until(over)
        assert await seen(one, "h") == await seen(two, "h")
        assert await one.registry.store.posts("fact") == []


async def test_A6_an_await_elsewhere_of_a_program_that_reads(store: str) -> None:
    """The owner probes a command only while somebody waits."""
    cat = keephold.command(["cat"], name="cat", stdin=True, actions=TALKING, on_turn_end="keep")
    async with Runtime([cat], store=store) as one, Runtime([cat], store=store) as two:
        await kept(one, spawn("cat", "c"))
        assert (await two.wait(all=["c"], timeout=60, conversation="main"))["needs_input"]
        await one.send("c", None, conversation="main")
