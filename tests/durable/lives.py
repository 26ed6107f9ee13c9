"""Runtimes that live and die on one store: the words in which the tests of durability are written.

A power cut is a copy. What is committed at that moment is copied to a new place, where nobody runs anything; a runtime
that is opened there finds exactly what it would find after the machine came back. The runtime that was cut off lives on
at the old place and is closed like any other, so that a test leaves nothing behind.
"""

import asyncio
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL

import keephold
from keephold import Call, Key, Pending, Response, Runtime, ToolCall, Turn
from keephold.handles.state import Stopped
from keephold.store.base import HandleQuery, Record, Registered
from keephold.tools.function import FunctionTool
from keephold.turn.crash_loops import crash_loop

START = 1_767_225_600.0
"""2026-01-01 00:00 UTC, where the virtual clock begins, too."""

_copies = itertools.count(1)


class HandClock:
    """A clock that stands until the test moves it: virtual time cannot jump while a store listens on a socket."""

    def __init__(self, at: float = START) -> None:
        self.at = at

    def now(self) -> float:
        return self.at


def stored_in(directory: Path) -> str:
    """The URL of a store in that directory."""
    return f"sqlite:///{directory}/work.db"


def power_cut(store: str) -> str:
    """The URL of what a power cut would leave of a store: all that was committed, and nobody who runs anything."""
    path = Path(store.removeprefix("sqlite:///"))
    after = path.parent / f"cut-{next(_copies)}"
    after.mkdir()
    for each in (path, path.with_name(f"{path.name}-wal")):
        if each.exists():
            shutil.copy(each, after)
    output = path.with_name(f"{path.name}-output")
    if output.exists():
        shutil.copytree(output, after / output.name)
    return f"sqlite:///{after}/{path.name}"


class Story:
    """What a call did, over several lives, and where each life ends."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.key: Key | None = None
        self.reached = asyncio.Event()
        self.dies = True

    def step(self, name: str, result: Any = None) -> Any:
        """A function that notes that it ran."""

        async def function(given: Any) -> Any:
            self.did.append(name)
            if isinstance(result, Exception):
                raise result
            return result if result is not None else given

        return function

    async def cut_here(self) -> None:
        """Where the power is cut in the first life; the next one walks past."""
        if self.dies:
            self.reached.set()
            await asyncio.Event().wait()


def approval(keys: list[Key], pending: Pending | None = None, name: str = "approve", **options: Any) -> FunctionTool:
    """A tool whose result comes from outside: it hands its key over and returns `Pending`."""
    terms = Pending() if pending is None else pending

    @keephold.tool(**{"actions": STATEFUL, "name": name, **options})
    async def approve(call: Call, what: str = "it") -> Pending:
        keys.append(await call.completion_key())
        return terms

    return approve


def ok(payload: Any) -> dict[str, Any]:
    return {"status": "ok", "payload": payload}


async def only(turn: Turn, call: ToolCall) -> Response:
    """The response to a batch of one call."""
    (response,) = await turn.run([call])
    return response


async def notifications(rt: Runtime, conversation: str = "main") -> list[tuple[str, str]]:
    """The notifications that wait for a carrier: kind and level."""
    return [(each.kind, each.level) for each in await rt.registry.store.notifications(conversation)]


async def stopped(rt: Runtime, id: str, conversation: str = "main", within: float = PATIENCE) -> keephold.HandleInfo:
    """The handle when it has stopped; a hang is an error."""
    await rt.wait(all=[id], timeout=within, conversation=conversation)
    info = await rt.handle(id, conversation=conversation)
    assert info.state == "stopped", info
    return info


async def parked(rt: Runtime, count: int = 1) -> None:
    """Until so many calls of the store are parked, one-shot calls included, and the runtime knows it."""

    async def so() -> bool:
        return len(await rt.registry.store.handles(HandleQuery(parked=True, stateful=None))) == count

    await until(so)
    await rt.registry.write(())


async def journaled(rt: Runtime, id: str, count: int = 1) -> bool:
    """Whether a call has recorded so much."""
    uid = (await rt.handle(id, conversation="main")).uid
    return len(await rt.registry.store.journal(uid)) >= count


async def in_state(rt: Runtime, id: str, state: str) -> bool:
    return (await rt.handle(id, conversation="main")).state == state


async def crash_looped(rt: Runtime, tool: str) -> str:
    """Write a call of that tool that was stopped because it ended its process; return its uid."""
    stopped = Stopped(START, START, START, crash_loop(3), "crash")
    uid = f"{next(_copies):032x}"
    record = Record(
        uid=uid, id="looped", tool=tool, conversation="main", turn="t", batch=1, position=0, call_id="looped",
        stateful=True, state=stopped, arguments={},
    )  # fmt: skip
    await rt.registry.write((Registered(record),))
    return uid


def parsed(response: Response) -> Any:
    assert not response.is_error, response.result
    return json.loads(response.result)
