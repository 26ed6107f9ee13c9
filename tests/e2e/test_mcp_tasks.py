"""Tasks of a server (SEP-2663) are followed as handles, also by the runtime after this one (M6, E)."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.durable.lives import power_cut, stored_in
from tests.e2e.mcp_servers import Server, serving, using
from tests.patience import PATIENCE, until

from keephold import Runtime, ToolCall
from keephold.outcomes import Failure, Ok
from keephold.prompts import Answer, AskQuestion


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, request.param, "modern") as made:
        yield made


@pytest.fixture(params=["poll", "push"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Over HTTP, so that it outlives a runtime; with and without notifications of tasks."""
    with serving(tmp_path, "http", "modern", request.param) as made:
        yield made


async def outcome_of(rt: Runtime, id: str) -> object:
    """The outcome of a handle that stops by itself: a question that is open is not the end of the wait."""
    async with asyncio.timeout(PATIENCE):
        while (info := await rt.handle(id, conversation="main")).state != "stopped":  # noqa: ASYNC110 (it asks, too)
            await asyncio.sleep(0.02)
    return info.outcome


async def test_M6_a_task_is_followed_to_its_result(server: Server, tmp_path: Path) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            file = tmp_path / "go"
            await using(turn, "build", action="spawn", id="b", file=str(file))
            await until(lambda: "tasks/get" in server.noted())
            progress = (await rt.handle("b", conversation="main")).progress
            assert progress is not None and progress.message == "begun"
            file.touch()
            waited = json.loads((await using(turn, "await", all=["b"])).result)
            assert waited["completed"] == [{"id": "b", "state": "stopped", "result": "built"}]
    assert server.noted().count("called build") == 1


async def test_M6_what_is_pushed_is_not_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path, "stdio", "modern", "push") as server:
        async with Runtime(servers=[server.spec()]) as rt:
            await rt.connected()
            async with rt.turn("main") as turn:
                file = tmp_path / "go"
                call = asyncio.create_task(turn.run([ToolCall(id="1", name="build", arguments={"file": str(file)})]))
                await until(lambda: "tasks/get" in server.noted())
                async with rt.turn("other") as other:  # meanwhile; the interval to ask at would be 50 ms
                    for _ in range(100):
                        assert (await using(other, "echo", text="x")).result == "x"
                file.touch()
                (response,) = await call
                assert response.result == "built"
        assert server.noted().count("tasks/get") <= 2


async def test_M6_aborting_a_handle_cancels_its_task(server: Server, tmp_path: Path) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            await using(turn, "build", action="spawn", id="b", file=str(tmp_path / "never"))
            await until(lambda: "tasks/get" in server.noted())
            await using(turn, "build", action="abort", id="b")
            await until(lambda: "task cancelled build" in server.noted())


async def test_M6_what_a_task_asks_is_asked_and_answered(remote: Server, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    async with Runtime(servers=[remote.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            await using(turn, "build_asking", action="spawn", id="b", file=str(tmp_path / "go"))
            waited = json.loads((await using(turn, "await", all=["b"])).result)
            assert waited["needs_input"] and waited["pending"][0]["question"]["text"] == "First?"
            await using(turn, "build_asking", action="apply", id="b", input=True)
            waited = json.loads((await using(turn, "await", all=["b"])).result)
            assert waited["pending"][0]["question"]["text"] == "Second?"
            await using(turn, "build_asking", action="apply", id="b", input=False)
            waited = json.loads((await using(turn, "await", all=["b"])).result)
            assert waited["completed"][0]["result"] == "built {'sure': True} {'sure': False}"


async def test_R1_without_a_journal_a_task_is_followed_all_the_same(server: Server, tmp_path: Path) -> None:
    (tmp_path / "go").touch()

    async def person(prompt: object) -> Answer:
        return Answer(True)

    spec = server.spec()
    spec = replace(spec, like=replace(spec.like, on_crash="fail"))
    async with Runtime(servers=[spec], prompter=person) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            built = await using(turn, "build_asking", file=str(tmp_path / "go"))
            assert built.result == "built {'sure': True} {'sure': True}"


async def test_M6_a_task_that_asks_for_what_is_not_offered_fails_and_is_cancelled(
    remote: Server, tmp_path: Path
) -> None:
    async with Runtime(servers=[remote.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            failed = await using(turn, "build_sampling", file=str(tmp_path / "never"))
            assert failed.is_error and "asks for `sampling/createMessage`, which is not offered" in failed.result
            await until(lambda: "task cancelled build_sampling" in remote.noted())


async def test_E_after_a_crash_the_same_task_is_followed_and_nobody_is_asked_twice(
    remote: Server, tmp_path: Path
) -> None:
    store, asked = stored_in(tmp_path), list[str]()
    second_asked = asyncio.Event()

    async def first_life(prompt: object) -> Answer:
        assert isinstance(prompt, AskQuestion)
        asked.append(prompt.question.text)
        if prompt.question.text == "Second?":
            second_asked.set()
            await asyncio.Event().wait()
        return Answer(True)

    async def second_life(prompt: object) -> Answer:
        assert isinstance(prompt, AskQuestion)
        asked.append(prompt.question.text)
        return Answer(False)

    async with Runtime(servers=[remote.spec()], store=store, prompter=first_life) as rt:
        await rt.connected()
        turn = rt.turn("main")
        await turn.__aenter__()
        await using(turn, "build_asking", action="spawn", id="b", file=str(tmp_path / "go"))
        await second_asked.wait()
        after = power_cut(store)
        (tmp_path / "go").touch()
        async with Runtime(servers=[remote.spec()], store=after, prompter=second_life) as next_rt:
            assert await outcome_of(next_rt, "b") == Ok("built {'sure': True} {'sure': False}")
    assert asked == ["First?", "Second?", "Second?"]  # the second had no answer when the power went
    assert remote.noted().count("called build_asking") == 1


async def test_R6_closing_lets_a_task_go_and_the_next_runtime_follows_it(remote: Server, tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    async with Runtime(servers=[remote.spec()], store=store) as rt:
        await rt.connected()
        turn = rt.turn("main")
        await turn.__aenter__()
        await using(turn, "build", action="spawn", id="b", file=str(tmp_path / "go"))
        await until(lambda: "tasks/get" in remote.noted())
    assert "task cancelled build" not in remote.noted()
    (tmp_path / "go").touch()
    async with Runtime(servers=[remote.spec()], store=store) as rt:
        assert await outcome_of(rt, "b") == Ok("built")
    assert remote.noted().count("called build") == 1


async def test_R1_a_call_without_a_task_is_not_repeated_after_a_crash(remote: Server, tmp_path: Path) -> None:
    store, never = stored_in(tmp_path), str(tmp_path / "never")
    async with Runtime(servers=[remote.spec()], store=store) as rt:
        await rt.connected()
        turn = rt.turn("main")
        await turn.__aenter__()
        await using(turn, "slow", action="spawn", id="s", file=never)
        await until(lambda: "slow began" in remote.noted())
        after = power_cut(store)
        async with Runtime(servers=[remote.spec()], store=after) as next_rt:
            outcome = await outcome_of(next_rt, "s")
            assert isinstance(outcome, Failure) and outcome.code == "crashed" and outcome.transient
    assert remote.noted().count("slow began") == 1
