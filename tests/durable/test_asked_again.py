"""What people were asked, over several lives of a runtime: asked again, and nothing lost (B9, E10, P5, R6)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, approval, only, parked, power_cut, stopped, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, call, fetch, reply, spawn, wait_all
from tests.turn.people import Person, attended

import keephold
from keephold import Call, KeepholdError, Key, Question, Runtime, Tool, ToolCall
from keephold.outcomes import Failure, Ok
from keephold.turn.prompts import Answer, Approved, AskQuestion, Denied, Edited, RunTool

SECRET = "correct horse battery staple"
SURE = Question(id="sure", text="Sure?", answer_type="Boolean")


def files_of(directory: Path) -> Iterator[Path]:
    return (each for each in directory.rglob("*") if each.is_file())


def stored(directory: Path, text: str) -> list[str]:
    """The files in which the text is found."""
    return [each.name for each in files_of(directory) if text.encode() in each.read_bytes()]


async def left_open(rt: Runtime, calls: list[ToolCall]) -> "asyncio.Task[Any]":
    """A batch that its runtime does not live to answer."""
    turn = await rt.turn("main").__aenter__()
    return asyncio.create_task(turn.run(calls))


async def over(batch: "asyncio.Task[Any]") -> None:
    await asyncio.wait([batch])
    batch.exception()


# Permission


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_B9_a_resumed_turn_asks_for_permission_again(tmp_path: Path, ending: str) -> None:
    store, ran = stored_in(tmp_path), list[str]()

    @keephold.tool(actions=STATEFUL, run="ask")
    async def work(path: str) -> str:
        ran.append(path)
        return path

    calls = [call("work", path="a"), spawn("work", "w", path="b"), wait_all("w"), call("work", path="c")]
    first = Person(Approved())
    async with Runtime([work], store=store, prompter=first) as rt:
        batch = await left_open(rt, calls)
        await until(lambda: len(first.seen) == 2 and ran == ["a"])
        await rt.registry.write(())
        if ending == "crash":
            store = power_cut(store)
    await over(batch)
    person = Person(Approved(), Denied("no more"))
    async with Runtime([work], store=store, prompter=person) as rt, rt.turn("main", resume=True) as turn:
        assert turn.unfinished is not None
        one, _, waited, three = await turn.resume()
        assert (one.result, three.result) == ("a", "Tool skipped by user: no more")
        assert '"result":"b"' in waited.result
        assert [prompt.arguments for prompt in person.seen if isinstance(prompt, RunTool)] == [
            {"path": "b"},
            {"path": "c"},
        ]
    assert ran == ["a", "b"]


async def test_P5_a_remembered_yes_does_not_outlive_the_process(tmp_path: Path) -> None:
    store, ran = stored_in(tmp_path), list[str]()

    @keephold.tool(run="ask")
    async def work() -> str:
        ran.append("work")
        return "done"

    async with Runtime([work], store=store, prompter=Person(Approved(remember=True))) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([call("work")])
        cut = power_cut(store)
    person = Person(Denied())
    async with Runtime([work], store=cut, prompter=person) as rt, rt.turn("main", resume=True) as turn:
        await turn.run([call("work")])
    assert len(person.seen) == 1 and ran == ["work"]


async def test_P5_E10_a_replay_runs_with_the_edited_arguments(tmp_path: Path) -> None:
    store, ran, reached = stored_in(tmp_path), list[str](), asyncio.Event()

    @keephold.tool(actions=STATEFUL, run="edit", on_crash="replay")
    async def work(call: Call, path: str) -> str:
        ran.append(path)
        reached.set()
        if call.attempt == 1:
            await asyncio.Event().wait()
        return path

    async with Runtime([work], store=store, prompter=Person(Edited({"path": "mine"}))) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w", path="theirs"))
        await reached.wait()
        cut = power_cut(store)
    async with attended(None, [work], person=Person(), store=cut) as (rt, _):
        assert (await stopped(rt, "w")).outcome == Ok("mine")
        record = await rt.registry.store.handle((await rt.handle("w", conversation="main")).uid)
        assert record is not None and record.arguments == {"path": "mine"}
    assert ran == ["mine", "mine"]


async def test_P5_B5_what_a_parked_call_holds_is_that_of_the_edited_arguments_after_a_restart(tmp_path: Path) -> None:
    keys: list[Key] = []
    store, locks = stored_in(tmp_path), ("lock:{{ tool.arguments.what }}",)
    approve = approval(keys, resources=locks, run="ask")

    @keephold.tool(resources=locks)
    async def deploy(what: str) -> str:
        return f"deployed {what}"

    async with attended(None, [approve], person=Person(Edited({"what": "b"})), store=store) as (rt, turn):
        await reply(turn, spawn("approve", "p", what="a"))
        await parked(rt)
    async with Runtime([approve, deploy], store=store) as rt, rt.turn("other") as turn:
        assert (await only(turn, call("deploy", what="b"))).code == "resource_held"
        assert (await only(turn, call("deploy", what="a"))).result == "deployed a"


# Questions


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_E10_an_open_question_is_asked_again_and_an_answered_one_is_not(tmp_path: Path, ending: str) -> None:
    store = stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        return [await call.ask(Question(id=id, text=f"{id}?", answer_type="Boolean")) for id in "abc"]

    first = Person(Answer(True))
    async with Runtime([work], store=store, prompter=first) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await until(lambda: len(first.seen) == 2 and bool(first.open))
        if ending == "crash":
            store = power_cut(store)
    assert len(first.withdrawn) == 1
    person = Person(Answer(False), Answer(True))
    async with attended(None, [work], person=person, store=store) as (rt, _):
        assert (await stopped(rt, "w")).outcome == Ok([True, False, True])
        assert [prompt.question.id for prompt in person.seen if isinstance(prompt, AskQuestion)] == ["b", "c"]


async def test_B9_Q8_ask_user_asks_again_in_a_resumed_turn(tmp_path: Path) -> None:
    store = stored_in(tmp_path)

    @keephold.tool
    async def idle() -> str:
        return "idle"

    first = Person()
    async with Runtime([idle], store=store, prompter=first) as rt:
        batch = await left_open(rt, [call("ask_user", question="Who?"), call("idle")])
        await first.sees()
        await rt.registry.write(())
        cut = power_cut(store)
    await over(batch)
    async with Runtime([idle], store=cut, prompter=Person(Answer("Ann"))) as rt, rt.turn("main", resume=True) as turn:
        assert [response.result for response in await turn.resume()] == ["Ann", "idle"]


@pytest.mark.parametrize("on_crash", ["fail", "replay"])
async def test_Q5_an_answer_that_is_no_text_is_taken_or_asked_again(tmp_path: Path, on_crash: Any) -> None:
    """Half of a surrogate pair, as a terminal that is not UTF-8 gives: it must not leave the call hanging."""

    @keephold.tool(on_crash=on_crash)
    async def asks(call: Call) -> str:
        return "got " + ascii(await call.ask(Question(id="q", text="?", answer_type="Text")))

    person = Person(Answer("caf\udce9"), Answer("plain"))
    async with attended(None, [asks], person=person, store=stored_in(tmp_path)) as (_, turn):
        async with asyncio.timeout(PATIENCE):
            (response,) = await turn.run([call("asks")])
        assert response.result.startswith("got ") or response.code == "not_storable"


# Results


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_R6_E10_a_result_nobody_has_decided_about_is_asked_about_again(tmp_path: Path, ending: str) -> None:
    store, ran = stored_in(tmp_path), list[int]()

    @keephold.tool(actions=STATEFUL, on_crash="replay", result="ask")
    async def work(call: Call) -> str:
        ran.append(call.attempt)
        return f"attempt {call.attempt}"

    first = Person()
    async with Runtime([work], store=store, prompter=first) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await first.sees()
        if ending == "crash":
            store = power_cut(store)
    person = Person(Approved())
    async with attended(None, [work], person=person, store=store) as (rt, _):
        assert (await stopped(rt, "w")).outcome == Ok("attempt 2")
    assert ran == [1, 2] and len(person.seen) == 1


async def test_R1_a_result_nobody_has_decided_about_goes_with_a_process_that_dies(tmp_path: Path) -> None:
    store = stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, result="ask")
    async def work() -> str:
        return "a secret"

    first = Person()
    async with Runtime([work], store=store, prompter=first) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await first.sees()
        assert stored(tmp_path, "a secret") == []
        cut = power_cut(store)
    async with Runtime([work], store=cut, prompter=Person()) as rt:
        info = await stopped(rt, "w")
        assert info.ended_by == "crash" and "secret" not in str(info.outcome)


@pytest.mark.parametrize("mode", ["skip", "ask"])
async def test_P1_output_that_was_stored_with_a_step_is_withheld_too(tmp_path: Path, mode: Any) -> None:
    """Output of a replay tool is written with its steps: what is withheld at the end must not be read from there."""
    store = stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, on_crash="replay", result=mode)
    async def work(call: Call) -> str:
        async def once(given: Any) -> Any:
            return given

        call.emit("printed secret\n")
        await call.durable().run_json("step", None, once)
        return "a secret"

    async with attended(None, [work], person=Person(Denied()), store=store) as (rt, turn):
        await turn.run([spawn("work", "w"), wait_all("w")])
    async with Runtime([work], store=store) as rt, rt.turn("main") as turn:
        (fetched, read) = await turn.run([fetch("work", "w"), call("read_output", id="w")])
        assert "secret" not in fetched.result and "secret" not in read.result
        assert (await rt.handle("w", conversation="main")).output_bytes == 0


# While the runtime closes: nobody is there any more, which is not the same as nobody there (R6)


class _Tidies(Person):
    """A prompter that takes a moment when its prompt is withdrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.tidying = asyncio.Event()

    async def __call__(self, what: Any) -> Any:
        try:
            return await super().__call__(what)
        except asyncio.CancelledError:
            self.tidying.set()
            await asyncio.sleep(0.3)
            raise


@pytest.mark.parametrize("what", ["question", "result", "permission"])
async def test_R6_what_comes_up_while_the_runtime_closes_is_left_to_the_next(tmp_path: Path, what: str) -> None:
    store, clock = stored_in(tmp_path), HandClock()
    closing = asyncio.Event()

    @keephold.tool(actions=STATEFUL, on_crash="replay", result="ask" if what == "result" else "unattended")
    async def work(call: Call) -> str:
        if call.attempt == 1:
            await closing.wait()
        return "done" if what == "result" else str(await call.ask(SURE))

    @keephold.tool
    async def before() -> str:
        await closing.wait()
        return "before"

    @keephold.tool(scheduling="serial", run="ask")
    async def step() -> str:
        return "stepped"

    @keephold.tool(actions=STATEFUL)
    async def asks(call: Call) -> str:
        return str(await call.ask(SURE))

    tools: list[Tool] = [work, before, step, asks]
    calls = [spawn("asks", "a"), *([call("before"), call("step")] if what == "permission" else [spawn("work", "w")])]
    first = _Tidies()
    async with Runtime(tools, store=store, clock=clock, prompter=first) as rt:
        batch = await left_open(rt, calls)
        await first.sees()
        if what != "permission":
            await batch
        leaving = asyncio.create_task(rt.close())
        await first.tidying.wait()  # the runtime is closing, and waits for the prompter
        closing.set()
        await leaving
    await over(batch)
    if what == "permission":
        approving = Runtime(tools, store=store, clock=clock, prompter=Person(Approved()))
        async with approving as rt, rt.turn("main", resume=True) as turn:
            responses = turn.answered if turn.unfinished is None else await turn.resume()
            assert responses is not None and responses[-1].result == "stepped"
        return
    async with Runtime(tools, store=store, prompter=Person(Approved() if what == "result" else Answer(True))) as rt:
        info = await stopped(rt, "w")
        assert not isinstance(info.outcome, Failure) and info.attempt == 2


async def test_R6_closing_raises_for_whoever_waits_for_the_batch(tmp_path: Path) -> None:
    @keephold.tool(run="ask")
    async def work() -> str:
        return "done"

    person = Person()
    async with Runtime([work], store=stored_in(tmp_path), prompter=person) as rt:
        batch = await left_open(rt, [call("work")])
        await person.sees()
    with pytest.raises(KeepholdError) as caught:
        await batch
    assert caught.value.code == "runtime_closed"
