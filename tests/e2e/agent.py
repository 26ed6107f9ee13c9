"""An agent's process with tools that people may come to: `python -m tests.e2e.agent STORE`, and `Agent`, which runs it.

It takes batches from stdin, one JSON list of `[tool, arguments]` a line, in one turn of conversation `main`, and prints
what each call was answered. A person is there who never says anything.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.e2e.place import Said, ran
from tests.patience import PATIENCE
from tests.turn.calls import STATEFUL, TALKING

import keephold
from keephold import Call, Question, Runtime, ToolCall
from keephold.policies import QuestionPolicy
from keephold.turn.prompts import Decision, Prompt

ROOT = Path(__file__).parents[2]


@keephold.tool(actions=TALKING)
async def talk(call: Call) -> str:
    """Says what it is told, in colour, until that is `bye` or its input is closed."""
    call.emit("hello\n")
    try:
        while (line := await call.input()) != "bye":
            call.emit(f"you said \x1b[31m{line}\x1b[0m\r\n")
    except EOFError:
        return "no goodbye?"
    return "it was nice"


@keephold.tool(actions=TALKING, questions={"which": QuestionPolicy(exclusive=True)})
async def choose(call: Call) -> str:
    """Asks a person for a colour."""
    kind = {"Select": {"options": ["red", "green"]}}
    return f"painted {await call.ask(Question(id='which', text='Which colour?', answer_type=kind))}"


@keephold.tool(actions=TALKING)
async def log_in(call: Call) -> str:
    """Asks for a password."""
    return f"{len(str(await call.ask(Question(id='password', text='Password:', secret=True))))} characters"


@keephold.tool
async def order(call: Call) -> str:
    """Asks for a form, as a one-shot call."""
    size = {"type": "string", "enum": ["small", "large"], "title": "Which size?"}
    count = {"type": "integer", "minimum": 1}
    form = {"Form": {"properties": {"size": size, "count": count}, "required": ["size"]}}
    return json.dumps(await call.ask(Question(id="order", text="Your order?", answer_type=form)))


@keephold.tool(actions=STATEFUL)
async def gush(call: Call, size: int) -> str:
    """Prints much more than it keeps."""
    for _ in range(size // 100):
        call.emit("x" * 99 + "\n")
    await asyncio.Event().wait()
    return "never"


async def never(prompt: Prompt) -> Decision:
    """A person who says nothing."""
    await asyncio.Event().wait()
    raise AssertionError


async def main(store: str) -> None:
    shell = keephold.terminal(["bash", "--norc", "--noprofile"], name="shell", env={"PS1": "$ "}, rows=20, cols=70)
    tools = [talk, choose, log_in, order, gush, shell]
    async with Runtime(tools, store=store, prompter=never) as rt, rt.turn("main") as turn:
        while line := await asyncio.to_thread(sys.stdin.readline):
            calls = [ToolCall(str(at), *call) for at, call in enumerate(json.loads(line))]
            answers = [(each.result, each.code) for each in await turn.run(calls)]
            print(json.dumps(answers), flush=True)


class Agent:
    """The process, in a directory with a store `work.db`, and commands on that store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        store = f"sqlite:///{directory}/work.db"
        self.environment = {**os.environ, "KEEPHOLD_STORE": store, "STORE_OF_TEST": store, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.agent", self.environment["KEEPHOLD_STORE"]],
            cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self.kill()
            self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def run(self, *calls: tuple[str, dict[str, Any]]) -> list[tuple[str, str | None]]:
        """Run a batch: what each call was answered, and the code of a refusal."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(calls) + "\n")
        self._process.stdin.flush()
        answered = self._process.stdout.readline()
        assert answered, "the agent has ended"
        return [(result, code) for result, code in json.loads(answered)]

    def spawn(self, tool: str, id: str, **arguments: Any) -> Any:
        ((result, code),) = self.run((tool, {"action": "spawn", "id": id, **arguments}))
        assert code is None, result
        return json.loads(result)

    def fetch(self, tool: str, id: str) -> Any:
        ((result, code),) = self.run((tool, {"action": "fetch", "id": id}))
        assert code is None, result
        return json.loads(result)

    def apply(self, tool: str, id: str, input: Any = None, **more: Any) -> tuple[str, str | None]:
        (answer,) = self.run((tool, {"action": "apply", "id": id, "input": input, **more}))
        return answer

    def keephold(self, *arguments: str, stdin: str = "") -> Said:
        """Run a command to its end."""
        return ran(arguments, self.directory, self.environment, stdin)

    def raw(self, *arguments: str) -> bytes:
        """The bytes that a command prints."""
        return subprocess.check_output(
            [sys.executable, "-m", "keephold", *arguments], cwd=self.directory, env=self.environment, timeout=PATIENCE
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "keephold", *arguments],
            cwd=self.directory, env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
