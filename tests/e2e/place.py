"""A store with real processes around it: a worker that runs tools on it, and the commands that look at it."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.driver import until
from tests.patience import PATIENCE

WORKER = '''
import asyncio, json, sys
import keephold

gates = {}

def say(**facts):
    print(json.dumps(facts), flush=True)

@keephold.tool(actions=("spawn", "fetch", "abort"), timeout_secs=None)
async def gate(call: keephold.Call, name: str) -> str:
    """Waits until it is told how to end."""
    call.emit(f"{name} is shut\\n")
    word = await gates.setdefault(name, asyncio.get_running_loop().create_future())
    if word == "fail":
        raise keephold.ToolError("the gate is broken", code="tool_error")
    return f"{name} is open"

@keephold.tool(actions=("spawn", "fetch", "abort"))
async def approve(call: keephold.Call, what: str) -> keephold.Pending:
    """Waits for somebody outside."""
    call.emit(f"asking for {what}\\x1b[31m\\n")
    say(keys={call.id: await call.completion_key()})
    return keephold.Pending(deadline=3600)

@keephold.tool(actions=("spawn", "fetch", "abort"), on_crash="replay")
async def steps(call: keephold.Call) -> str:
    """Does one thing, then waits for an event."""
    effects = call.durable()
    async def make(given):
        return {"made": given}
    async def burst(given):
        raise keephold.ToolError("a pipe has burst")
    await effects.run_json("make", 7, make)
    try:
        await effects.run_json("burst", 7, burst)
    except keephold.ToolError:
        pass
    key = await effects.external_event_key("go:7")
    say(keys={call.id: key})
    return await effects.await_event_json(key)

@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def asking(call: keephold.Call) -> str:
    """Asks a question."""
    return str(await call.ask(keephold.Question(id="sure", text="Really?", answer_type="Boolean")))

async def main():
    store, tools = sys.argv[1], [gate, approve, steps, asking]
    async with keephold.Runtime(tools, store=store) as rt:
        turns = {}
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            if "end" in order:
                gates.pop(order["name"]).set_result(order["end"])
                continue
            turn = turns.get(order["conversation"])
            if turn is None:
                turn = turns[order["conversation"]] = rt.turn(order["conversation"])
                await turn.__aenter__()
            calls = [keephold.ToolCall(str(at), *call) for at, call in enumerate(order["calls"])]
            if order.get("wait", True):
                say(responses=[response.result for response in await turn.run(calls)])
            else:
                asyncio.create_task(turn.run(calls))

asyncio.run(main())
'''


class Worker:
    """A program that runs tools on the store, and does as it is told over a pipe."""

    def __init__(self, directory: Path) -> None:
        (directory / "worker.py").write_text(WORKER)
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "worker.py", "sqlite:///work.db"],
            cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def run(self, *calls: tuple[str, dict[str, Any]], conversation: str = "main") -> list[str]:
        """Run a batch; the keys that its tools took, in the order of the calls."""
        self._order(conversation=conversation, calls=calls)
        taking = [str(at) for at, (name, _) in enumerate(calls) if name in ("approve", "steps")]
        keys: dict[str, str] = {}
        answered = False
        while not answered or len(keys) < len(taking):
            said = self._said.get(timeout=PATIENCE)
            answered |= "responses" in said
            keys |= said.get("keys", {})
        return [keys[label] for label in taking]

    def begin(self, *calls: tuple[str, dict[str, Any]]) -> None:
        """Begin a batch that will not be answered."""
        self._order(conversation="main", calls=calls, wait=False)

    def end(self, name: str, how: str = "open") -> None:
        """Let a `gate` end."""
        self._order(name=name, end=how)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))

    def _order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listening.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.count("\n") == 1, self
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table, its head excepted."""
        return [[cell.strip() for cell in line.split("  ") if cell] for line in self.out.splitlines()[1:]]


def ran(arguments: Sequence[str], directory: Path, environment: Mapping[str, str], stdin: str = "") -> Said:
    """Run a command to its end."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "keephold", *arguments],
        cwd=directory, env=environment, input=stdin.encode(), capture_output=True, timeout=PATIENCE, check=False,
        start_new_session=True,
    )  # fmt: skip
    said = Said(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in said.err, said.err
    return said


class Place:
    """A directory with a store `work.db`, programs that run tools on it, and commands that look at it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self._environment = {**os.environ, "KEEPHOLD_STORE": "sqlite:///work.db"}

    def worker(self) -> Worker:
        worker = Worker(self.directory)
        self._stack.callback(worker.kill)
        return worker

    def keephold(self, *arguments: str, stdin: str = "") -> Said:
        return ran(arguments, self.directory, self._environment, stdin)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "keephold", *arguments],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._stack.callback(_end, process)
        return process

    def waiting(self, *arguments: str) -> "subprocess.Popen[str]":
        """A `keephold wait` that has the store open."""
        before = self._present()
        process = self.start("wait", *arguments)
        until(lambda: self._present() - before or process.poll() is not None)
        time.sleep(0.1)
        return process

    def _present(self) -> set[str]:
        return {path.name for path in (self.directory / "work.db-owners").iterdir() if not path.name.startswith(".")}


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def spawn(tool: str, id: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return tool, {"action": "spawn", "id": id, **arguments}
