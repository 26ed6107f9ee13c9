"""An exception that leaves a turn's block loses no more than a crash (R9): it interrupts the turn and cancels nothing.

Parked and `replay` calls stay, ordinary ones are aborted, the batch stays open, and a turn of this or another process
resumes it.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import approval, ok, parked, parsed, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, call, spawn, wait_all
from tests.turn.puppets import STORES, store_url

import keephold
from keephold import Call, KeepholdError, Key, Pending, Runtime, ToolCall, Turn
from keephold.errors import TurnFailed
from keephold.prompts import Approved
from keephold.testing import VirtualClock
from keephold.turn.prompts import Prompt

both = pytest.mark.parametrize("store", STORES)


class Oops(Exception):
    """A failure of the program under test."""


class Scene:
    """An approval, a build that is replayed after a crash, ordinary work, and one that must not run beside others."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.events: list[Key] = []
        self.ran: list[str] = []
        self.working = asyncio.Event()

        @keephold.tool(actions=STATEFUL, on_crash="replay")
        async def build(call: Call) -> Any:
            self.ran.append("build")
            fx = call.durable()
            self.events.append(await fx.external_event_key("built"))
            return await fx.await_event_json(self.events[-1])

        @keephold.tool(actions=STATEFUL)
        async def work(call: Call) -> str:
            self.ran.append("work")
            self.working.set()
            await asyncio.Event().wait()
            return "never"

        @keephold.tool(scheduling="serial")
        async def last(call: Call) -> str:
            self.ran.append("last")
            return "last"

        self.tools = [approval(self.keys), build, work, last]

    async def ready(self, rt: Runtime, parks: int = 1) -> None:
        """Until the approval is parked, the build waits and the work is at work."""
        await until(lambda: bool(self.events) and self.working.is_set())
        await parked(rt, parks)


async def interrupted(turn: Turn, calls: list[ToolCall], scene: Scene, rt: Runtime) -> None:
    """The program of a test: it raises while its batch is open."""
    async with turn, asyncio.TaskGroup() as group:
        batch = group.create_task(turn.run(calls))
        await scene.ready(rt)
        assert not batch.done()
        raise Oops


BATCH = [call("approve"), call("build"), call("work"), call("last")]


async def answered(turn: Turn, scene: Scene, rt: Runtime) -> list[str]:
    """Answer what the open batch waits for, and return its results."""
    assert turn.unfinished is not None and turn.unfinished.calls == tuple(BATCH)
    resumed = asyncio.create_task(turn.resume())
    await rt.resolve(scene.keys[0], ok("yes"))
    await rt.resolve(scene.events[0], ok("built"))
    return [response.result for response in await resumed]


RESULTS = ["yes", "built", "Aborted: the turn was interrupted.", "last"]


@both
async def test_R9_an_exception_leaves_the_batch_open_and_the_same_runtime_resumes_it(
    store: str, tmp_path: Path
) -> None:
    scene = Scene()
    async with Runtime(scene.tools, store=store_url(store, tmp_path)) as rt:
        turn = rt.turn("main")
        with pytest.raises(ExceptionGroup):
            await interrupted(turn, BATCH, scene, rt)
        assert turn.interrupted and turn.ending is None
        with pytest.raises(KeepholdError, match="the turn has ended"):
            await turn.run([call("last")])
        async with rt.turn("main", resume=True) as resumed:
            assert resumed.id == turn.id and resumed.resumed
            assert await answered(resumed, scene, rt) == RESULTS
        assert resumed.ending is not None
    assert scene.ran == ["build", "work", "last"]  # each once: the process never died


async def test_R9_another_process_resumes_it_while_this_one_lives(tmp_path: Path) -> None:
    scene, store = Scene(), stored_in(tmp_path)
    async with Runtime(scene.tools, store=store) as rt, Runtime(scene.tools, store=store) as other:
        with pytest.raises(ExceptionGroup):
            await interrupted(rt.turn("main"), BATCH, scene, rt)
        async with other.turn("main", resume=True) as resumed:
            with pytest.raises(KeepholdError, match="has an open turn"):  # one of them is first
                await rt.turn("main", resume=True).__aenter__()
            assert await answered(resumed, scene, other) == RESULTS
    assert scene.ran == ["build", "work", "last"]


async def test_R9_after_an_exception_the_next_process_finds_everything(tmp_path: Path) -> None:
    scene, store = Scene(), stored_in(tmp_path)
    with pytest.raises(ExceptionGroup):
        async with Runtime(scene.tools, store=store) as rt:
            await interrupted(rt.turn("main"), BATCH, scene, rt)
    async with Runtime(scene.tools, store=store) as rt, rt.turn("main", resume=True) as resumed:
        assert await answered(resumed, scene, rt) == RESULTS
    assert scene.ran == ["build", "work", "build", "last"]


@pytest.mark.parametrize("leave", [Oops, KeyboardInterrupt, asyncio.CancelledError, TimeoutError, GeneratorExit])
async def test_R9_whatever_leaves_the_block_cancels_nothing_that_survives_a_crash(
    leave: type[BaseException], clock: VirtualClock
) -> None:
    scene = Scene()
    async with Runtime(scene.tools, clock=clock) as rt:
        with pytest.raises(leave):
            async with rt.turn("main") as turn:
                await turn.run([spawn("approve", "a"), spawn("build", "b"), spawn("work", "w")])
                await scene.ready(rt)
                raise leave
        approve, build, work = await rt.handles()
        assert (approve.parked, build.state, work.ended_by) == (True, "running", "turn_end")
        assert str(await rt.resolve(scene.keys[0], ok("yes"))) == "accepted"
        await rt.resolve(scene.events[0], ok("built"))
        async with rt.turn("main") as turn:  # a new one, which does not resume
            done = await turn.wait(all=["a", "b", "w"])
            results = [each["result"] for each in done["completed"]]
            assert results == ["yes", "built", "Aborted: the turn was interrupted."]


async def test_R9_a_timeout_around_the_block_and_one_of_its_end(clock: VirtualClock) -> None:
    """The first comes while a batch waits, the second while the end waits for a handle."""
    scene, slow = Scene(), keephold.tool(actions=STATEFUL, on_turn_end="await", name="slow")(_sleeps)
    async with Runtime([*scene.tools, slow], clock=clock) as rt:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60), rt.turn("main") as turn:
                await turn.run([call("approve", what="first")])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60), rt.turn("main", resume=True) as turn:
                assert turn.unfinished is not None
                with suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        await turn.resume()
                await turn.resume(park_after=0)
                await turn.run([spawn("slow", "s")])
        assert turn.ending is None and (await rt.handle("s", conversation="main")).ended_by == "turn_end"
        assert str(await rt.resolve(scene.keys[0], ok("yes"))) == "accepted"
        async with rt.turn("main", resume=True) as turn:
            assert turn.resumed


async def _sleeps(call: Call) -> str:
    await asyncio.sleep(3600)
    return "never"


async def test_R9_a_batch_that_timed_out_can_be_resumed_in_its_turn(clock: VirtualClock) -> None:
    scene = Scene()
    async with Runtime(scene.tools, clock=clock) as rt, rt.turn("main") as turn:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await turn.run(BATCH)
        assert await answered(turn, scene, rt) == RESULTS
        assert turn.unfinished is None


@pytest.mark.parametrize("instead", ["another batch", "the end"])
async def test_B7_a_batch_that_timed_out_is_cancelled_if_the_turn_continues_without_it(
    instead: str, clock: VirtualClock
) -> None:
    scene = Scene()
    async with Runtime(scene.tools, clock=clock) as rt:
        async with rt.turn("main") as turn:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await turn.run(BATCH)
            if instead == "another batch":
                assert [each.result for each in await turn.run([call("last")])] == ["last"]
                assert turn.unfinished is None
        late = await rt.resolve(scene.keys[0], ok("late"))
        assert (str(late), late.terminal) == ("already_resolved", {"status": "cancelled"})
        assert rt.live() == [] and scene.ran.count("last") == (instead == "another batch")


@both
async def test_R9_calls_that_can_be_started_again_are(store: str, tmp_path: Path) -> None:
    """One that asks for permission asks again, and an `await` waits again."""
    scene, prompts = Scene(), asyncio.Queue[Prompt]()
    allowing = asyncio.Event()

    async def prompter(prompt: Prompt) -> Approved:
        prompts.put_nowait(prompt)
        await allowing.wait()
        return Approved()

    @keephold.tool(run="ask")
    async def careful(call: Call) -> str:
        return "careful"

    url = store_url(store, tmp_path)
    async with Runtime([*scene.tools, careful], store=url, prompter=prompter) as rt:
        with pytest.raises(Oops):
            async with rt.turn("main") as turn:
                await turn.run([spawn("build", "b")])
                batch = asyncio.create_task(turn.run([call("careful"), wait_all("b")]))
                await prompts.get()
                raise Oops
        with pytest.raises(KeepholdError, match="the turn was interrupted before this batch was answered"):
            await batch
        async with rt.turn("main", resume=True) as turn:
            resumed = asyncio.create_task(turn.resume())
            await prompts.get()
            allowing.set()
            await rt.resolve(scene.events[0], ok("built"))
            allowed, waited = await resumed
            assert allowed.result == "careful" and parsed(waited)["completed"][0]["result"] == "built"


@both
async def test_T5_a_new_turn_ends_the_calls_that_nobody_resumed(store: str, tmp_path: Path) -> None:
    scene = Scene()
    async with Runtime(scene.tools, store=store_url(store, tmp_path)) as rt:
        with pytest.raises(ExceptionGroup):
            await interrupted(rt.turn("main"), BATCH, scene, rt)
        async with rt.turn("main") as turn:
            assert turn.unfinished is None and not turn.resumed
        assert rt.live() == [] and "last" not in scene.ran


async def test_T5_an_exception_after_a_cancel_or_a_failure_is_no_interruption(clock: VirtualClock) -> None:
    scene = Scene()
    doomed = approval([], Pending(deadline=30, on_timeout="fail_turn"), name="doomed")
    async with Runtime([*scene.tools, doomed], clock=clock) as rt:
        with pytest.raises(Oops):
            async with rt.turn("main") as turn:
                await turn.run([spawn("approve", "a")])
                await parked(rt)
                turn.cancel()
                raise Oops
        assert (await rt.handle("a", conversation="main")).ended_by == "cancel" and turn.ending is not None
        with pytest.raises(TurnFailed):
            async with rt.turn("main") as turn:
                await turn.run([spawn("approve", "b")])
                await turn.run([call("doomed")])
                await turn.run([call("last")])
        assert (await rt.handle("b", conversation="main")).ended_by == "cancel" and turn.ending is not None


async def test_R9_an_exception_with_the_commit_of_a_batch_in_flight(tmp_path: Path) -> None:
    """Cancelled before the store has the batch: what a crash would end is aborted, and `replay` runs all the same."""
    scene = Scene()
    async with Runtime(scene.tools, store=stored_in(tmp_path)) as rt:
        for passes in range(1, 12):
            scene.events.clear()
            turn = rt.turn(f"c{passes}")
            with suppress(asyncio.CancelledError):
                async with turn:
                    batch = asyncio.create_task(turn.run([call("build"), call("work")]))
                    for _ in range(passes):
                        await asyncio.sleep(0)
                    batch.cancel()
                    await batch
            async with rt.turn(f"c{passes}", resume=True) as resumed:
                if resumed.unfinished is None:
                    continue  # the store never had it
                answers = asyncio.create_task(resumed.resume())
                await until(lambda: bool(scene.events))
                await rt.resolve(scene.events[0], ok("built"))
                built, worked = await answers
                assert (built.result, worked.result) == ("built", "Aborted: the turn was interrupted.")
        assert rt.live() == []


async def test_R9_a_program_that_raises_finds_its_approval_its_build_and_its_batch(tmp_path: Path) -> None:
    async def lives() -> tuple[int | None, str, str]:
        """Run the program to its end."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.durable.raising", stored_in(tmp_path), str(tmp_path),
            cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    code, out, err = await lives()
    assert code == 1 and out == "" and "ConnectionError: the stream broke" in err
    async with Runtime(store=stored_in(tmp_path)) as webhooks:
        key = (tmp_path / "approve").read_text()
        assert str(await webhooks.resolve(key, ok("yes"))) == "accepted"
        await webhooks.resolve((tmp_path / "build").read_text(), ok("tested"))
    code, out, err = await lives()
    assert code == 0, err
    assert out.splitlines() == [
        "approve yes",
        'build ["compiled","tested"]',
        "look Aborted: the turn was interrupted.",
        "publish published",
    ]
    assert (tmp_path / "compiled").read_text() == "once\n"


async def test_B1_of_two_turns_that_are_begun_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(store=stored_in(tmp_path)) as rt:
        continues, collect = asyncio.Event(), rt.registry.collect_sometimes

        async def slowly() -> None:
            monkeypatch.setattr(rt.registry, "collect_sometimes", collect)
            await continues.wait()

        monkeypatch.setattr(rt.registry, "collect_sometimes", slowly)
        late = asyncio.ensure_future(rt.turn("main").__aenter__())
        await asyncio.sleep(0)
        async with rt.turn("main"):
            continues.set()
            with pytest.raises(KeepholdError) as refused:
                await late
            assert refused.value.code == "turn_open"
