"""Several processes on one store (E6, R1, B1, M3): who lives keeps what is his, who is dead loses it at once."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.durable.lives import ok, only, parsed, stopped, stored_in
from tests.durable.program import tools
from tests.patience import PATIENCE, stop_between_commits, until
from tests.turn.calls import apply, fetch, reply

from keephold import KeepholdError, Runtime
from keephold.outcomes import Failure, Ok
from keephold.turn import relay

ROOT = Path(__file__).parents[2]


class Program:
    """A running program of `program.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def stop(self, directory: Path) -> None:
        stop_between_commits(self._process.pid, Path(stored_in(directory).removeprefix("sqlite:///")))

    async def kill(self) -> None:
        """As a crash would: it gets to do nothing more."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def program(directory: Path, how: str, *names: str) -> AsyncIterator[Program]:
    """Run it on the store of the directory until it says that it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.durable.program", stored_in(directory), str(directory), how, *names,
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
        running.stop(tmp_path)
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
