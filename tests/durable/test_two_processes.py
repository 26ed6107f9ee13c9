"""Several processes on one store (E6, R1, B1, M3): who lives keeps what is his, who is dead loses it at once."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.durable.lives import in_state, ok, only, parsed, stopped, stored_in
from tests.durable.program import tools
from tests.patience import PATIENCE, stop_between_commits, until
from tests.soak import SOAK
from tests.turn.calls import abort, apply, call, fetch, reply, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Runtime, ToolCall, Turn
from keephold.control.control import Control
from keephold.control.stored_output import talking
from keephold.outcomes import Failure, Ok
from keephold.store.base import Record
from keephold.turn import attach_protocol as frames
from keephold.turn import relay

ROOT = Path(__file__).parents[2]


class Program:
    """A running program of `program.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def stop(self, store: str) -> None:
        if store.startswith("sqlite"):
            stop_between_commits(self._process.pid, Path(store.removeprefix("sqlite:///")))
        else:
            self.send(signal.SIGSTOP)

    async def kill(self) -> None:
        """As a crash would: it gets to do nothing more."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def program(directory: Path, how: str, *names: str, store: str = "") -> AsyncIterator[Program]:
    """Run it, on the store of the directory if no other one is given, until it says that it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.durable.program", store or stored_in(directory), str(directory), how, *names,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    running = Program(process)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"ready\n"
        yield running
    finally:
        await running.kill()


def lines(directory: Path, file: str) -> list[str]:
    return (directory / file).read_text().splitlines()


async def test_R1_killed_in_the_middle_everything_goes_on_by_its_own_rule(tmp_path: Path) -> None:
    async with program(tmp_path, "spawn", "deploy", "approve", "work") as running:
        await running.kill()
    async with Runtime(tools(tmp_path), store=stored_in(tmp_path)) as rt, rt.turn("main"):
        assert (await stopped(rt, "work")).ended_by == "crash"
        assert (await rt.handle("approve", conversation="main")).parked
        (approval,) = lines(tmp_path, "approve")
        assert str(await rt.resolve(approval, ok("yes"))) == "accepted"
        await until(lambda: len(lines(tmp_path, "deploy")) == 2)
        first, second = lines(tmp_path, "deploy")
        assert first == second
        assert str(await rt.resolve(first, ok("now"))) == "accepted"
        assert (await stopped(rt, "deploy")).outcome == Ok(["created", "now", 2])
        assert (await stopped(rt, "approve")).outcome == Ok("yes")
    assert lines(tmp_path, "created") == ["attempt 1"] and lines(tmp_path, "work") == ["attempt 1"]


async def test_B9_killed_in_the_middle_of_a_batch_the_turn_is_resumed(tmp_path: Path) -> None:
    async with program(tmp_path, "run", "deploy", "approve", "work") as running:
        await running.kill()
    async with Runtime(tools(tmp_path), store=stored_in(tmp_path)) as rt, rt.turn("main", resume=True) as turn:
        assert turn.unfinished is not None
        resuming = asyncio.create_task(turn.resume())
        await until(lambda: len(lines(tmp_path, "deploy")) == 2)
        await rt.resolve(lines(tmp_path, "approve")[0], ok("yes"))
        await rt.resolve(lines(tmp_path, "deploy")[0], ok("now"))
        deploy, approve, work = await resuming
        assert (deploy.result, approve.result) == ('["created","now",2]', "yes")
        assert work.code == "crashed"


async def test_E6_who_lives_keeps_its_calls_and_its_turn_and_who_is_dead_loses_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped lives: no clock decides."""
    async with (
        program(tmp_path, "kept", "session", "deploy") as running,
        Runtime(tools(tmp_path), store=stored_in(tmp_path)) as rt,
        rt.turn("main") as turn,
    ):
        entry = parsed(await only(turn, apply("session", "session", "hi")))
        assert entry["content"].endswith("you said hi\n")
        running.stop(stored_in(tmp_path))
        with monkeypatch.context() as impatient:
            impatient.setattr(relay, "SILENT_SECS", 0.2)
            silent = await only(turn, fetch("session", "session"))
        assert silent.code == "owner_not_answering"
        await rt.recovery.sweep()
        info = await rt.handle("deploy", conversation="main")
        assert (info.state, info.attempt, rt.live()) == ("running", 1, [])
        running.send(signal.SIGCONT)
        assert (await reply(turn, fetch("session", "session")))["state"] == "running"
        await running.kill()
        assert (await reply(turn, fetch("session", "session")))["state"] == "stopped"  # recovered first
        assert (await rt.handle("session", conversation="main")).ended_by == "crash"
        await until(lambda: len(lines(tmp_path, "deploy")) == 2)
        await rt.resolve(lines(tmp_path, "deploy")[0], ok("now"))
        assert (await stopped(rt, "deploy")).outcome == Ok(["created", "now", 2])


async def test_B1_a_turn_is_open_while_its_process_lives_and_taken_over_when_it_is_dead(tmp_path: Path) -> None:
    async with (
        program(tmp_path, "spawn", "work") as running,
        Runtime(tools(tmp_path), store=stored_in(tmp_path)) as rt,
    ):
        for resume in (False, True):
            with pytest.raises(KeepholdError) as caught:
                await rt.turn("main", resume=resume).__aenter__()
            assert caught.value.code == "turn_open"
        async with rt.turn("other"):
            pass
        await running.kill()
        async with rt.turn("main"):
            assert (await stopped(rt, "work")).ended_by == "crash"


async def test_R1_a_sweep_finds_who_has_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 0.1)
    async with (
        program(tmp_path, "spawn", "work") as running,
        Runtime(tools(tmp_path), store=stored_in(tmp_path)) as rt,
    ):
        waiting = asyncio.create_task(rt.wait(all=["work"], timeout=PATIENCE, conversation="main"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await running.kill()
        (entry,) = (await waiting)["completed"]
        assert entry["is_error"] is True


async def test_R1_without_the_tool_a_dead_processes_call_stays_as_it_is(tmp_path: Path) -> None:
    async with program(tmp_path, "kept", "session") as running:
        await running.kill()
    without = [tool for tool in tools(tmp_path) if tool.name != "session"]
    async with Runtime(without, store=stored_in(tmp_path)) as rt:
        info = await rt.handle("session", conversation="main")
        assert (info.state, info.tool) == ("running", "session")
    async with Runtime(tools(tmp_path), store=stored_in(tmp_path)) as rt:
        info = await stopped(rt, "session")
        assert isinstance(info.outcome, Failure) and info.outcome.code == "crashed"


@pytest.mark.parametrize("how", ["ended", "killed"])
async def test_B4_the_serial_lane_is_one_for_all_processes(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 0.1)
    async with (
        program(tmp_path, "kept", "alone", store=store) as running,
        Runtime(tools(tmp_path), store=store) as rt,
        rt.turn("main") as turn,
    ):
        assert (await reply(turn, spawn("alone", "next")))["state"] == "pending"
        assert (await reply(turn, spawn("alone", "last")))["state"] == "pending"
        for id in ("next", "last"):
            waited = await rt.wait(all=[id], timeout=PATIENCE, conversation="main")
            assert waited["pending"] == [{"id": id, "state": "pending", "behind": "alone"}], waited
        assert len(lines(tmp_path, "alone")) == 1
        if how == "killed":
            await running.kill()
        else:
            assert (await reply(turn, apply("alone", "alone", "bye")))["result"] == "bye"
        await until(lambda: len(lines(tmp_path, "alone")) == 2)
        assert (await rt.handle("last", conversation="main")).state == "pending"
        assert (await reply(turn, apply("alone", "next", "x")))["result"] == "x"
        await until(lambda: len(lines(tmp_path, "alone")) == 3)
        await reply(turn, apply("alone", "last", "x"))


async def test_B4_the_lane_is_free_for_others_after_the_last_handle_here(tmp_path: Path, store: str) -> None:
    """The next process hears it by the bell: a sweep would come only after 5 s."""
    async with Runtime(tools(tmp_path), store=store) as one, Runtime(tools(tmp_path), store=store) as two:
        for rt, other in ((one, two), (two, one), (one, two)):
            async with rt.turn("main") as turn:
                assert (await reply(turn, spawn("alone", "a")))["state"] == "running"
            async with other.turn("main") as turn:
                assert (await reply(turn, spawn("alone", "b")))["state"] == "pending"
                await reply(turn, apply("alone", "a", "x"))
                await until(partial(in_state, other, "b", "running"))
                assert (await reply(turn, apply("alone", "b", "x")))["result"] == "x"
        await until(lambda: not one.admission.lanes._holders and not two.admission.lanes._holders)


async def test_B4_one_shot_serial_calls_of_two_processes_run_one_at_a_time(store: str) -> None:
    running, most = 0, 0

    @keephold.tool(scheduling="serial")
    async def count(call: Call) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return "counted"

    async with Runtime([count], store=store) as one, Runtime([count], store=store) as two:
        queues = [rt.call_queue("main") for rt in (one, two)]
        calls = [queue.call(ToolCall(f"c{n}", "count")) for n in range(5) for queue in queues]
        assert [response.result for response in await asyncio.gather(*calls)] == ["counted"] * 10
    assert most == 1


async def attach(rt: Runtime, turn: Turn) -> str:
    """Drive the terminal: type a line, and return when it is printed."""
    store = rt.registry.store
    record = await store.named("main", "screen")
    assert isinstance(record, Record)
    printed = b""
    async with talking(store, record, frames.Want(uid=record.uid, want="attach", rows=24, cols=80), rt.relay) as talk:
        await talk.receive()
        talk.send(frames.INPUT, b"typed\n")
        while b"typed" not in printed:
            kind, payload = await talk.receive()
            printed += payload if kind == frames.OUTPUT and isinstance(payload, bytes) else b""
    return "typed"


async def read(rt: Runtime, turn: Turn) -> str:
    info = await rt.handle("session", conversation="main")
    return (await Control(rt).output(info.uid))["text"]


async def answer(rt: Runtime, turn: Turn) -> str:
    info = await rt.handle("asks", conversation="main")
    return str((await Control(rt).answer(info.uid, True))["result"])


async def permit(rt: Runtime, turn: Turn) -> str:
    (post,) = await rt.registry.store.posts("prompt")
    return (await Control(rt).decide(post.id, {"decision": "approve"}))["status"]


def told(call: ToolCall, field: str) -> Callable[[Runtime, Turn], Awaitable[str]]:
    async def run(rt: Runtime, turn: Turn) -> str:
        return str(parsed(await only(turn, call)).get(field))

    return run


Action = Callable[[Runtime, Turn], Awaitable[str]]
ACTIONS: dict[str, tuple[str, Action, str]] = {
    "fetch": ("session", told(fetch("session", "session"), "state"), "running"),
    "apply": ("session", told(apply("session", "session", "hi"), "content"), "you said hi\n"),
    "abort": ("session", told(abort("session", "session"), "ended_by"), "abort"),
    "await": ("session", told(wait_all("session"), "needs_input"), "True"),
    "wait for a line": ("session", told(call("await", output={"session": "hell"}), "completed"), "[]"),
    "read": ("session", read, "hello\n"),
    "answer": ("asks", answer, "sure: True"),
    "permit": ("careful", permit, "taken"),
    "attach": ("screen", attach, "typed"),
}
"""By action of another process: the tool whose handle it is about, how it acts, and the result."""


SHARED = [what for what in ACTIONS if what != "attach"] if SOAK else ["apply", "permit", "await"]
"""The actions tried over PostgreSQL, where processes have no sockets for each other: nobody can drive a terminal."""
TABLE = [*((what, "sqlite") for what in ACTIONS), *((what, "postgres") for what in SHARED)]


@pytest.mark.parametrize(("what", "store"), TABLE, indirect=["store"])
async def test_M3_another_process_can(tmp_path: Path, store: str, what: str) -> None:
    name, act, result = ACTIONS[what]
    async with (
        program(tmp_path, "asked" if what == "permit" else "kept", name, store=store),
        Runtime(tools(tmp_path), store=store) as rt,
        rt.turn("other" if what == "permit" else "main") as turn,
    ):
        async with asyncio.timeout(PATIENCE):
            assert await act(rt, turn) == result


@pytest.mark.parametrize(("what", "store"), TABLE, indirect=["store"])
async def test_M3_if_the_owner_is_killed_meanwhile_nothing_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, what: str
) -> None:
    """The owner is stopped before and killed afterwards, so that it cannot answer."""
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 0.1)
    name, act, _ = ACTIONS[what]
    async with (
        program(tmp_path, "asked" if what == "permit" else "kept", name, store=store) as running,
        Runtime(tools(tmp_path), store=store) as rt,
        rt.turn("other" if what == "permit" else "main") as turn,
    ):
        running.stop(store)
        acting = asyncio.ensure_future(act(rt, turn))
        await asyncio.sleep(0.05)
        await running.kill()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(acting, return_exceptions=True)
        assert acting.exception() is None or isinstance(acting.exception(), KeepholdError | AssertionError)
        if what != "permit":
            info = await stopped(rt, name)
            assert info.ended_by in ("crash", "abort")
