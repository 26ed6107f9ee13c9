"""Conversations in processes that are killed (SIGKILL): what they play, and the nursery that forks them.

    python -m tests.agent.mortal

reads a request a line, forks a child for each and says how it ended. A child takes the conversation up where the one
before it left it, dies where it is told to (at a commit, or at a named moment), and otherwise leaves a report.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_ai.exceptions import ModelAuthenticationError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from tests.agent.scripted import Line, Reply, Script, at_end, called, put, spawned
from tests.crash.stage import Commits

import keephold
from keephold import Call, Question, Runtime
from keephold.agent.conversation import Conversation
from keephold.agent.events import Answered, Event, Text
from keephold.store.base import HandleQuery
from keephold.store.sqlite import SqliteStore
from keephold.testing.clock import where

PATIENCE = 45.0
"""Seconds in which a child must come to its end, or it is stuck."""
CONFIG = """
[conversation]
detached = "auto"
[conversation.assistant]
model = "python:tests.agent.scripted:main"
[agents.helper]
model = "python:tests.agent.scripted:helper"
run = "unattended"
"""
MAIN = "main"


class World:
    """The run that this process is."""

    def __init__(self, directory: Path, moment: str | None = None) -> None:
        self.directory = directory
        self.moment = moment
        self.store: SqliteStore | None = None

    def act(self, what: str) -> None:
        """Do something that cannot be undone: it is on the disk before anything goes on."""
        file = os.open(self.directory / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(file, f"{what}\n".encode())
        os.fsync(file)
        os.close(file)

    def at(self, moment: str) -> None:
        """Die here, if that was wanted; once in a life."""
        if moment == self.moment and f"died {moment}" not in effects(self.directory):
            self.act(f"died {moment}")
            os.kill(os.getpid(), signal.SIGKILL)


_here = World(Path())


def effects(directory: Path) -> list[str]:
    file = directory / "effects"
    return file.read_text().splitlines() if file.exists() else []


# Tools


@keephold.tool
async def note(name: str) -> str:
    """Has a side effect; a crash ends it (`fail`)."""
    _here.act(f"note {name}")
    return f"noted {name}"


@keephold.tool(scheduling="serial")
async def later(name: str) -> str:
    """The same, one at a time: it starts when all others have returned."""
    _here.act(f"later {name}")
    return f"done later {name}"


async def _slow(call: Call) -> str:
    _here.act(f"slow {call.attempt}")
    while _here.moment == "in a batch" and _here.store is not None and call.attempt == 1:
        stopped = await _here.store.handles(HandleQuery(conversation=call.conversation, state="stopped", stateful=None))
        if len(stopped) >= 2:
            _here.at("in a batch")
            break
        await asyncio.sleep(0.001)
    return "slow is done"


@keephold.tool
async def slow(call: Call) -> str:
    """Dies with its process."""
    return await _slow(call)


@keephold.tool(on_crash="replay")
async def patient(call: Call) -> str:
    """Is run again."""
    return await _slow(call)


@keephold.tool(on_crash="replay")
async def steps(call: Call, name: str) -> str:
    """Two journaled steps."""
    fx = call.durable()

    async def do(step: Any) -> Any:
        _here.act(f"step {name} {step}")
        return step

    first = await fx.run_json("first", 1, do)
    second = await fx.run_json("second", 2, do)
    return f"steps {name}: {first} {second}"


@keephold.tool(actions=("spawn", "fetch", "abort"), on_crash="replay", on_turn_end="inquire")
async def work(call: Call) -> str:
    """Takes a moment, and lives on when the assistant has finished."""
    _here.at("in a spawned call")
    # A process that is to die in the end dies while this runs: on a busy machine a short pause would be over first.
    await asyncio.sleep(PATIENCE if _here.moment == "in the end" else 0.1)
    return "work is done"


@keephold.tool(on_crash="replay")
async def ask(call: Call) -> str:
    """Asks the assistant."""
    return f"asked: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"


TOOLS = (note, later, slow, patient, steps, work, ask)


# Scenes: what is said to each prompt, by how many responses there were to it


def _since(messages: Sequence[ModelMessage]) -> tuple[str, int]:
    """The newest prompt, and the number of responses to it."""
    said, count = "", 0
    for message in messages:
        if isinstance(message, ModelResponse):
            count += 1
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart) and str(part.content).startswith("prompt "):
                said, count = str(part.content), 0
    return said, count


def _scene(**prompts: list[Line]) -> dict[str, list[Line]]:
    return {f"prompt {name}": lines for name, lines in prompts.items()}


_FOUR = (called("c1", "note", name="a"), called("c2", "note", name="b"))
SCENES: dict[str, dict[str, list[Line]]] = {
    "whole": _scene(
        one=[
            Reply(["First ", "words."], [*_FOUR, called("c3", "steps", name="s"), called("c4", "later", name="c")]),
            [spawned("c5", "work", "w"), called("c6", "note", name="d")],
            Reply(["One ", "is done."]),
            "One is really done.",
            "One is done for ever.",
        ],
        two=[[called("c7", "ask")], [called("c8", "note", name="e"), called("c9", "nobody")], "Two is done."],
    ),
    "same ids": _scene(
        one=[[called("c", "note", name="a")], [called("c", "note", name="b")], [called("c", "note", name="c")], "Done."]
    ),
    "batch of a slow": _scene(one=[[*_FOUR, called("c3", "slow"), called("c4", "later", name="c")], "Done."]),
    "batch of a patient": _scene(one=[[*_FOUR, called("c3", "patient"), called("c4", "later", name="c")], "Done."]),
    "question": _scene(one=[[called("c1", "ask"), called("c2", "note", name="a")], "Done."]),
    "end": _scene(one=[[spawned("c1", "work", "w")], "Done.", "Really done.", "Done for ever."]),
    "agent": _scene(
        one=[[called("c1", "helper", prompt="prompt help"), called("c2", "note", name="a")], "Done.", "Done again."]
    ),
    "spawned agent": _scene(
        one=[
            [spawned("c1", "helper", "h", prompt="prompt help"), called("c2", "await", all=["h"])],
            "Done.",
            "Done again.",
        ]
    ),
    "agent in a batch": _scene(one=[[called("c1", "helper", prompt="prompt four")], "Done."]),
    "failing agent": _scene(one=[[called("c1", "helper", prompt="prompt fail")], "Done.", "Done again."]),
    "news": _scene(one=["One."], two=[[called("c1", "note", name="a")], "Two."], three=["Three."]),
}
HELP = _scene(
    help=[[called("h1", "note", name="x"), called("h2", "steps", name="y")], "Helped.", "Helped again."],
    four=[[*_FOUR, called("c3", "patient"), called("c4", "later", name="c")], "Helped."],
    fail=[[called("h1", "note", name="x")], ModelAuthenticationError("scripted", "no such key")],
)
NEWS = ("news of one", "news of two")


def _script(prompts: dict[str, list[Line]]) -> Script:
    def say(messages: list[ModelMessage]) -> Line:
        said, count = _since(messages)
        return prompts[said][count]

    def answer(text: str) -> Any:
        _here.at("in a question" if "paused" in text else "in the end")
        return {"answer": True} if "paused" in text else at_end("wait")(text)

    return Script(*[say] * 50, answers=answer, by_history=True)


# A child


def _listen(event: Event) -> None:
    match event:
        case Text(text):
            _here.at(f"after {text!r}")
        case Answered():
            _here.at("after a batch")


async def _play(scene: str, commits: Commits) -> dict[str, Any]:
    main, helper = _script(SCENES[scene]), _script(HELP)
    put(main=main, helper=helper)
    config = _here.directory / "keephold.toml"
    config.write_text(CONFIG)
    _here.store = store = SqliteStore(_here.directory / "work.db", fault=commits)
    async with Runtime(TOOLS, store=store, config=config) as rt:
        conversation = rt.conversation(MAIN)
        await conversation.open()
        answers = []
        if conversation.interrupted:
            answers.append(await conversation.resume(listener=_listen))
        for prompt in SCENES[scene]:
            if _has(conversation, prompt):
                continue
            if scene == "news" and prompt != "prompt one":
                await _tell(rt, NEWS[0] if prompt == "prompt two" else NEWS[1])
            answers.append(await conversation.prompt(prompt, listener=_listen))
        return {
            "answers": [[answer.text, answer.stop_reason, answer.error] for answer in answers],
            "lines": {row.id: await _lines(store, row.id) for row in await store.conversations()},
            "open": [row.id for row in await store.conversations() if await store.turn(row.id) is not None],
            "live": [f"{info.id} {info.state}" for info in rt.live()],
            "invalid": [*main.invalid, *helper.invalid],
            "commits": commits.count,
        }


async def _tell(rt: Runtime, news: str) -> None:
    """Queue it, if nobody is sure that it was."""
    if f"told {news}" not in effects(_here.directory):
        await rt.notify("test.news", "info", news, conversation=MAIN)
        _here.act(f"told {news}")


def _has(conversation: Conversation, prompt: str) -> bool:
    return any(
        isinstance(part, UserPromptPart) and part.content == prompt
        for message in conversation.transcript.messages
        if isinstance(message, ModelRequest)
        for part in message.parts
    )


async def _lines(store: SqliteStore, id: str) -> list[list[Any]]:
    return [[line.kind, json.loads(line.body)] for line in await store.transcript(id)]


async def _live(request: dict[str, Any]) -> None:
    global _here
    _here = World(Path(request["directory"]), request["moment"])
    commits = Commits(request["kill"], lambda: os.kill(os.getpid(), signal.SIGKILL))
    try:
        async with asyncio.timeout(PATIENCE):
            report = await _play(request["scene"], commits)
    except TimeoutError:
        print("stuck:", *(where(task) for task in asyncio.all_tasks()), sep="\n", file=sys.stderr)
        raise
    (_here.directory / "report").write_text(json.dumps(report))


def _child(request: dict[str, Any]) -> None:
    code = 1
    try:
        errors = os.open(Path(request["directory"]) / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 2)
        os.dup2(errors, 1)
        asyncio.run(_live(request))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def nursery() -> None:
    """Fork a child for each request; answer with how it ended."""
    with tempfile.TemporaryDirectory() as directory:  # so that no child has to import anything
        asyncio.run(_live({"directory": directory, "moment": None, "kill": None, "scene": "agent"}))
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    nursery()
