"""A runtime reduced to its kept processes: what it would follow, and programs that do the same and can be killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keephold.errors import ToolError
from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.tools.keeper.children import Hooks, KeptProcess, KeptPty, ProcessEnd
from keephold.tools.keeper.client import Keeper, Returned
from keephold.tools.keeper.record import read_record

PATH = os.environ["PATH"]
SOON = 60.0
"""Seconds in which everything happens that must happen, on the slowest machine."""


class Followed:
    """One kept process, and all that a runtime heard of it."""

    def __init__(self, directory: Path, uid: str, max_output: int = 100 << 20) -> None:
        self.uid = uid
        self.output = Output(Spool(directory), max_output, uid)
        self.data = bytearray()
        """The output since this runtime has it."""
        self.ended: ProcessEnd | None = None
        self.failed: ToolError | None = None
        self.displaced = False
        self.child: Any = None
        self._changed = asyncio.Event()
        self.hooks = Hooks(
            output=self._printed,
            exit=self._set("ended"),
            failed=self._set("failed"),
            displaced=lambda: self._set("displaced")(True),
        )

    def _printed(self, total: int) -> None:
        start = self.output.total
        self.output.followed(total)
        while start < total:
            piece = self.output.read(start, total)
            assert not piece.missing
            self.data += piece.data
            start = piece.end
        self._changed.set()

    def _set(self, name: str) -> Callable[[Any], None]:
        def set(value: Any) -> None:
            setattr(self, name, value)
            self._changed.set()

        return set

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self._changed.clear()
                with_timeout = asyncio.wait_for(self._changed.wait(), 0.05)
                try:
                    await with_timeout
                except TimeoutError:
                    continue

    async def printed(self, what: bytes) -> None:
        await self.until(lambda: what in self.data)

    async def handed_over(self) -> None:
        """Return when the keeper has handed all input over."""
        await self.until(lambda: not self.child._waiting)

    async def end(self) -> ProcessEnd:
        await self.until(lambda: self.ended or self.failed)
        assert self.ended is not None, self.failed
        return self.ended


class Runtime:
    """A runtime in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keeper = Keeper(directory)
        self._followed: list[Followed] = []

    def following(self, uid: str, max_output: int = 100 << 20) -> Followed:
        followed = Followed(self.directory, uid, max_output)
        self._followed.append(followed)
        return followed

    async def close(self) -> None:
        await self.keeper.leave()
        for followed in self._followed:
            followed.output.close()

    async def command(
        self, uid: str, script: str, *, fence: int = 1, keep_secs: float = 60.0, stdin: bool = True, **given: Any
    ) -> Followed:
        followed = self.following(uid, given.pop("max_output", 100 << 20))
        child: KeptProcess = self.keeper.start_process(
            uid, ["sh", "-c", script], env={"PATH": PATH}, cwd="/", stdin=stdin,
            grace=1.0, keep_secs=keep_secs, fence=fence, layout=followed.output.follow(), hooks=followed.hooks,
        )  # fmt: skip
        followed.child = child
        await followed.until(lambda: child.started or followed.failed or followed.ended)
        return followed

    async def terminal(self, uid: str, argv: list[str], *, fence: int = 1, keep_secs: float = 60.0) -> Followed:
        followed = self.following(uid)
        child: KeptPty = self.keeper.start_pty(
            uid, argv, env={"PATH": PATH, "TERM": "xterm"}, cwd="/", rows=24, cols=80, grace=1.0,
            keep_secs=keep_secs, fence=fence, layout=followed.output.follow(), hooks=followed.hooks,
        )  # fmt: skip
        followed.child = child
        await followed.until(lambda: child.started or followed.failed or followed.ended)
        return followed

    async def take_back(self, uid: str, fence: int) -> Followed:
        """Take back one that still runs; `data` has its whole output."""
        followed = self.following(uid)
        found = await self.keeper.take_back(uid, fence, followed.hooks)
        assert isinstance(found, Returned), found
        followed.child = found.child
        followed.output.follow_again(found.layout)
        followed.data += followed.output.read(0).data
        found.child.begin()
        return followed


@asynccontextmanager
async def runtime(directory: Path) -> AsyncIterator[Runtime]:
    made = Runtime(directory)
    try:
        yield made
    finally:
        await made.close()


def keeper_of(directory: Path, uid: str) -> int:
    """The pid of the keeper that has, or had, this process."""
    record = read_record(directory, uid)
    assert record is not None
    return int(record.keeper.split("-")[1])


async def gone(pid: int) -> None:
    """Return when a process has ended that is nobody's child here."""
    async with asyncio.timeout(SOON):
        while runs(pid):  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


DRIVER = """
import asyncio, os, sys, time
from pathlib import Path
from tests.keeper.runtimes import Runtime

async def main(directory, uid, kind, script, keep_secs, forks):
    runtime = Runtime(Path(directory))
    if kind == "terminal":
        followed = await runtime.terminal(uid, ["sh", "-c", script], keep_secs=float(keep_secs))
    else:
        followed = await runtime.command(uid, script, keep_secs=float(keep_secs))
    forked = 0
    if forks == "True" and not (forked := os.fork()):
        time.sleep(60)
        os._exit(0)
    print(f"started {forked}", flush=True)
    async def said():
        return await asyncio.to_thread(sys.stdin.readline)
    while line := (await said()).rstrip("\\n"):
        verb, _, rest = line.partition(" ")
        if verb == "type":
            followed.child.write(rest.encode() + b"\\n", b"cause " + rest.encode())
            await followed.handed_over()
        elif verb == "printed":
            await followed.printed(rest.encode())
        print("done", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Driver:
    """A runtime in a process of its own that starts one kept process, does as it is told, and is killed."""

    def __init__(
        self, directory: Path, uid: str, kind: str, script: str, keep_secs: float = 60.0, *, forks: bool = False
    ) -> None:
        arguments = [sys.executable, "-c", DRIVER, str(directory), uid, kind, script, str(keep_secs), str(forks)]
        root = str(Path(__file__).parents[2])
        self._program = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}, text=True
        )
        self.forked = int(self._answer("started"))
        """The pid of a child that it forked, if it was to."""

    def do(self, what: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(what + "\n")
        self._program.stdin.flush()
        self._answer("done")

    def _answer(self, word: str) -> str:
        assert self._program.stdout is not None
        answer, _, rest = self._program.stdout.readline().rstrip().partition(" ")
        assert answer == word
        return rest

    def kill(self) -> None:
        self._program.send_signal(signal.SIGKILL)
        self._program.wait()
        for pipe in (self._program.stdin, self._program.stdout):
            assert pipe is not None
            pipe.close()
