"""Processes that Python tools start end with the call or, at the latest, with the command that runs the tools (R2)."""

import asyncio
import multiprocessing
import subprocess
from concurrent.futures import Future, ProcessPoolExecutor

from tests.e2e.driver import Start, TurnProcess, until
from tests.patience import PATIENCE

import keephold

_pools: list[ProcessPoolExecutor] = []
_work: list[Future[int]] = []


@keephold.tool
async def by_asyncio() -> str:
    """Start a process in another session and forget it."""
    await asyncio.create_subprocess_exec("sleep", "301", start_new_session=True)
    return "started"


@keephold.tool
def by_subprocess() -> str:
    """Start a shell that starts another process."""
    subprocess.run(["sh", "-c", "setsid sleep 302 </dev/null >/dev/null 2>&1 &"], check=True)
    return "started"


@keephold.tool
async def by_pool() -> str:
    """Start a worker that is forked from this process, and so has the environment with which that was started."""
    _pools.append(ProcessPoolExecutor(1, multiprocessing.get_context("fork")))
    _work.append(_pools[-1].submit(_stay))
    return "started"


def _stay() -> int:
    return subprocess.call(["sleep", "303"])


CONFIG = "".join(
    f'[conversation.tools.{name}]\nsource = "python"\nfunction = "tests.e2e.test_function_children:{name}"\n'
    'run = "unattended"\n\n'
    for name in ("by_asyncio", "by_subprocess", "by_pool", "own")
)


def started(turn: TurnProcess) -> TurnProcess:
    """Have all three kinds of processes."""
    for name in ("by_asyncio", "by_subprocess", "by_pool"):
        assert turn.one(name, {}).text == "started"
    until(lambda: all(turn.running(f"sleep {secs}") for secs in (301, 302, 303)))
    return turn


def test_R2_what_functions_started_ends_when_the_command_is_killed(start: Start) -> None:
    turn = started(start(CONFIG))
    turn.process.kill()
    turn.process.wait()
    until(lambda: not turn.survivors(), what=lambda: str(turn.survivors()))


def test_R2_what_functions_started_ends_with_the_command(start: Start) -> None:
    turn = started(start(CONFIG))
    assert turn.process.stdin is not None
    turn.process.stdin.close()
    assert turn.ended() == []
    assert turn.process.wait(PATIENCE) == 0
    assert turn.survivors() == {}


def test_R2_the_next_start_ends_what_functions_of_a_dead_command_started(start: Start) -> None:
    turn = start(CONFIG)
    assert turn.one("by_asyncio", {}).text == "started"
    for guard in turn.running("marks.py"):  # nobody is left to do it but the next guard
        subprocess.run(["kill", "-9", str(guard)], check=True)
    until(lambda: not turn.running("marks.py"))
    turn.process.kill()
    turn.process.wait()
    start(CONFIG).one("by_subprocess", {})
    until(lambda: not turn.survivors(), what=lambda: str(turn.survivors()))


def test_R2_a_command_gives_its_mark_to_functions_and_not_to_commands(start: Start) -> None:
    tool = '[conversation.tools.show]\nsource = "local"\nrun = "unattended"\ncommand = ["printenv", "KEEPHOLD_MARK"]\n'
    turn = start(tool + CONFIG)
    of_command, of_function = turn.one("show", {}).text.split(), turn.one("own", {}).text.split()
    assert len(of_command) == len(of_function) == 1  # neither has two
    assert of_command[0].startswith(f"{of_function[0]}/")


@keephold.tool
async def own() -> str:
    """Return the mark that a process of this one would have."""
    return subprocess.run(["printenv", "KEEPHOLD_MARK"], capture_output=True, text=True, check=True).stdout
