"""A call that kills every process which resumes it (R8): it is found among hundreds, and nothing else is stopped."""

import asyncio
import signal
import sys
from pathlib import Path

from tests.durable.lives import notifications, stored_in
from tests.patience import PATIENCE

from keephold import HandleInfo, Runtime
from keephold.outcomes import Failure

ROOT = Path(__file__).parents[2]


class Life:
    """One process of `crash_loop_program.py`, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self._process = process
        self._errors = errors

    async def lives(self) -> bool:
        """Return whether it becomes ready; False: it died before."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return await self._process.stdout.readline() == b"ready\n"

    async def call(self, tool: str) -> None:
        """Make a new call; the process may die of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{tool}\n".encode())
        async with asyncio.timeout(PATIENCE):
            await self._process.stdout.readline()

    async def dies(self) -> str:
        """Return what it has logged, once it has been killed by one of its calls."""
        async with asyncio.timeout(PATIENCE):
            assert await self._process.wait() == -signal.SIGKILL
        return self._errors.read_text()

    async def kill(self) -> str:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        return self._errors.read_text()

    async def close(self) -> str:
        """Let it close in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await self._process.wait() == 0, self._errors.read_text()
        return self._errors.read_text()


class Lives:
    """The processes of a test, one after the other on one store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._all: list[Life] = []

    async def __aenter__(self) -> "Lives":
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._all:
            await each.kill()

    async def next(self, *names: str) -> Life:
        """Start a process that spawns these tools."""
        errors = self._directory / "stderr"
        with errors.open("w") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.attacks.crash_loop_program", stored_in(self._directory),
                str(self._directory), *names,
                cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=file,
            )  # fmt: skip
        self._all.append(Life(process, errors))
        return self._all[-1]

    async def die(self, times: int) -> None:
        """Start that many processes, each of which is killed by one of its calls."""
        for _ in range(times):
            await (await self.next()).dies()


async def handles(directory: Path) -> dict[str, HandleInfo]:
    """The handles by id, as a process without tools sees them."""
    async with Runtime(store=stored_in(directory)) as rt:
        return {info.id: info for info in await rt.handles(conversation="main", limit=10_000)}


def codes(found: dict[str, HandleInfo]) -> dict[str, str | None]:
    """How those that have stopped did."""
    return {
        info.id: info.outcome.code if isinstance(info.outcome, Failure) else None
        for info in found.values()
        if info.state == "stopped"
    }


async def test_R8_one_killer_among_hundreds_is_found_and_the_fourth_start_lives(tmp_path: Path) -> None:
    async with Lives(tmp_path) as lives:
        first = await lives.next("sleeper*150", "bomb", "sleeper*150")
        assert await first.lives()
        (tmp_path / "armed").touch()
        await first.dies()
        await lives.die(2)
        found = await handles(tmp_path)
        assert codes(found) == {} and len(found) == 301
        fourth = await lives.next()
        assert await fourth.lives()
        log = await fourth.kill()
        assert "`bomb-150`" in log and "is stopped: 3 processes in a row died" in log
        found = await handles(tmp_path)
        assert codes(found) == {"bomb-150": "crash_loop"}
        assert found["bomb-150"].ended_by == "crash"
        async with Runtime(store=stored_in(tmp_path)) as rt:
            assert await notifications(rt) == [("tool.failed", "error")]
        assert "crash_loop: 3 processes in a row died" in await command(tmp_path, "show", "bomb-150")
        # Retried, it has the journal and the key of the first call.
        (tmp_path / "disarmed").touch()
        said = await command(tmp_path, "retry", "bomb-150")
        assert said.startswith("bomb-150: repeated as uid ")
        assert "was retried before" in await command(tmp_path, "retry", found["bomb-150"].uid, fails=True)
        fifth = await lives.next()
        assert await fifth.lives()
        async with Runtime(store=stored_in(tmp_path)) as rt:
            await rt.wait(all=["bomb-150"], timeout=PATIENCE, conversation="main")
            again = await rt.handle("bomb-150", conversation="main")
            assert again.ok and again.uid == said.split()[-1] != found["bomb-150"].uid
        assert "did not fail" in await command(tmp_path, "retry", "bomb-150", fails=True)
        await fifth.kill()
        assert len(set((tmp_path / "keys").read_text().split())) == 1
        assert (tmp_path / "steps").read_text() == "first\n"


async def command(directory: Path, *words: str, fails: bool = False) -> str:
    """What a command prints about the store."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "keephold", *words, "--store", stored_in(directory),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert bool(process.returncode) is fails, said
    return said.decode()


async def test_R8_a_step_that_kills_the_process_fails_and_its_workflow_goes_on(tmp_path: Path) -> None:
    """The step is tried before its workflow, which made it."""
    async with Lives(tmp_path) as lives:
        first = await lives.next("workflow")
        assert await first.lives()
        (tmp_path / "armed").touch()
        await first.dies()
        await lives.die(2)
        fourth = await lives.next()
        assert await fourth.lives()
        (workflow,) = [id for id in await handles(tmp_path) if id.startswith("workflow")]
        async with Runtime(store=stored_in(tmp_path)) as rt:
            await rt.wait(all=[workflow], timeout=PATIENCE, conversation="main")
        await fourth.kill()
        ended = (await handles(tmp_path))[workflow].outcome
        assert isinstance(ended, Failure) and "3 processes in a row died" in ended.message and ended.code != "crashed"


async def test_R8_new_calls_that_kill_their_process_do_not_stop_others(tmp_path: Path) -> None:
    """Somebody kills each process with a new call. The call that is resumed beside it is innocent."""
    async with Lives(tmp_path) as lives:
        first = await lives.next("silent")
        assert await first.lives()
        await first.kill()
        for _ in range(2):
            again = await lives.next()
            assert await again.lives()
            await again.call("fresh_bomb")
            await again.dies()
        found = await handles(tmp_path)
        assert found["silent-0"].state == "running"
        fourth = await lives.next()  # its turn is quiet now, so the next new call starts when it is over
        assert await fourth.lives()
        making = asyncio.create_task(fourth.call("fresh_bomb"))
        (tmp_path / "disarmed").touch()
        await fourth.dies()
        await making
        assert codes(await handles(tmp_path)) == {
            "silent-0": None,
            "fresh_bomb-1": "crashed",
            "fresh_bomb-2": "crashed",
        }


async def test_R8_a_killer_is_found_although_new_calls_run(tmp_path: Path) -> None:
    async with Lives(tmp_path) as lives:
        first = await lives.next("bomb", "silent")
        assert await first.lives()
        (tmp_path / "armed").touch()
        await first.dies()
        await lives.die(1)
        (tmp_path / "armed").unlink()
        third = await lives.next()
        assert await third.lives()
        await third.call("busy")
        (tmp_path / "armed").touch()
        await third.dies()
        await lives.die(1)
        fifth = await lives.next()
        assert await fifth.lives()
        await fifth.kill()
        found = await handles(tmp_path)
        assert codes(found) == {"bomb-0": "crash_loop", "busy-2": "crashed"}


async def test_R8_closing_in_order_is_not_a_death(tmp_path: Path) -> None:
    async with Lives(tmp_path) as lives:
        first = await lives.next("silent")
        assert await first.lives()
        await first.close()
        for _ in range(4):
            again = await lives.next()
            assert await again.lives()
            assert "died" not in await again.close()
        assert codes(await handles(tmp_path)) == {}
