"""Handles that do what a test tells them, and what the assistant hears of them: the words of the tests of N and T.

A puppet prints, asks, reads and ends when it is told to, never by itself. So no test needs a clock to be right, and the
same test runs on every store.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.turn.calls import STATEFUL, call, spawn

import keephold
from keephold import Call, Question, Response, Runtime, ToolCall, Turn
from keephold.tools.base import Action, Tool
from keephold.turn.notifications import Notification

Order = Callable[[Call], Awaitable[Any]]

STORES = ("memory", "sqlite")
SURE = Question(id="sure", text="Sure?", answer_type="Boolean")


class Puppets:
    """The handles of a test, by id. What they are told is done in order, if need be as soon as they have started."""

    def __init__(self) -> None:
        self._told: dict[str, asyncio.Queue[Order]] = defaultdict(asyncio.Queue)

    def tool(
        self, name: str = "work", *, actions: Sequence[Action] = STATEFUL, patient: bool = False, **options: Any
    ) -> Tool:
        """A tool whose calls are puppets; `who` is the name by which the test tells them what to do.

        A reply of a patient one comes when it has asked or ended, however slow the machine is.
        """

        @keephold.tool(name=name, actions=tuple(actions), **options)
        async def puppet(call: Call, who: str) -> Any:
            while True:
                try:
                    await (await self._told[who].get())(call)
                except _Over as over:
                    return over.value

        # What it has not been told, it will not do.
        settle, longest = (10_000, 20_000) if patient else (5, 20)
        return replace(puppet, spawn=replace(puppet.spawn, settle_ms=settle, settle_max_ms=longest))

    def ends(self, who: str, value: Any = "done") -> None:
        async def end(call: Call) -> None:
            raise _Over(value)

        self._told[who].put_nowait(end)

    def fails(self, who: str, error: Exception | None = None) -> None:
        async def fail(call: Call) -> None:
            raise error if error is not None else keephold.ToolError("no luck")

        self._told[who].put_nowait(fail)

    def prints(self, who: str, text: str) -> None:
        async def emit(call: Call) -> None:
            call.emit(text)

        self._told[who].put_nowait(emit)

    def asks(self, who: str, question: Question = SURE) -> None:
        """It goes on when it has been answered."""

        async def ask(call: Call) -> None:
            await call.ask(question)

        self._told[who].put_nowait(ask)

    def reads(self, who: str) -> None:
        """It goes on when it has been sent something."""

        async def read(call: Call) -> None:
            await call.input()

        self._told[who].put_nowait(read)

    async def done(self, who: str) -> None:
        """Until it has done all it was told, up to here."""
        here = asyncio.Event()

        async def pass_by(call: Call) -> None:
            here.set()

        self._told[who].put_nowait(pass_by)
        await here.wait()


class _Over(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def start(id: str, tool: str = "work") -> ToolCall:
    """Spawn a puppet of that name."""
    return spawn(tool, id, who=id)


def hold(tool: str = "work") -> ToolCall:
    """Keeps its batch open until the puppet `held` ends. Once that has started, the calls before it are answered."""
    return call(tool, who="held")


@keephold.tool
async def nothing() -> str:
    """A call that is about none of the handles: something for news to ride on."""
    return "nothing"


def store_url(store: str, directory: Path) -> str:
    return "memory:" if store == "memory" else f"sqlite:///{directory}/work.db"


async def heard(turn: Turn, *calls: ToolCall) -> list[tuple[str, str]]:
    """What a batch brings besides its responses, kind and message; one of `nothing` if none is given."""
    return told(await turn.run(calls or [call("nothing")]))


def told(responses: Sequence[Response]) -> list[tuple[str, str]]:
    """The news that rides on responses: all of it on the first."""
    assert all(not response.notifications for response in responses[1:])
    return lines(responses[0].notifications)


def lines(notifications: Sequence[Notification]) -> list[tuple[str, str]]:
    return [(each.kind, each.message) for each in notifications]


async def over(rt: Runtime, *ids: str, conversation: str = "main") -> None:
    """Until they have stopped, without anyone having been shown that they have."""
    async with asyncio.timeout(PATIENCE):
        await rt.wait(all=ids, conversation=conversation)


async def in_state(rt: Runtime, id: str, state: str, conversation: str = "main") -> None:
    """Until the handle is visibly in that state; a hang is an error."""
    async with asyncio.timeout(PATIENCE):
        while (await rt.handle(id, conversation=conversation)).state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def waited_for(rt: Runtime, *ids: str, conversation: str = "main") -> None:
    """Until somebody waits for each of these handles of the runtime; a hang is an error."""
    async with asyncio.timeout(PATIENCE):
        while not all(rt.registry.find(id, conversation).watchers for id in ids):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
