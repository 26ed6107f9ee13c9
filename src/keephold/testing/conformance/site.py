"""Helpers for the checks of effects: a running system to make calls in, and the story of a call over several lives."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from keephold.errors import ToolError
from keephold.handles.handle import HandleInfo
from keephold.runtime import Runtime
from keephold.tools.base import Action, Tool
from keephold.tools.function import FunctionTool, tool
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

PATIENCE = 60.0
"""Seconds after which something that has not happened never will."""
CONVERSATION = "main"
TALKING: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")
RESOLUTIONS: dict[str, Any] = {
    "ok": {"answer": 42},
    "err": {"code": "denied", "message": "Ann said no"},
    "timeout": None,
    "cancelled": None,
}
"""By the status of a resolution, its payload."""
MEANINGS = {
    "ok": {"answer": 42},
    "err": "denied",
    "timeout": "durable_effect_event_timeout",
    "cancelled": "durable_effect_event_cancelled",
}
"""By that status, the result of the wait for a call: the payload, or the code of an error."""

Check = TypeVar("Check", bound=Callable[..., Any])


def crashing(check: Check) -> Check:
    """Mark a check that needs `Site.crash`."""
    check.__dict__["crashing"] = True
    return check


class Site:
    """A running system: a runtime, and the processes that run the bodies of its calls."""

    runtime: Runtime
    """The one that serves the model now."""

    def __init__(self) -> None:
        self._turn: Turn | None = None
        self._labels = 0

    async def crash(self) -> None:
        """End the bodies of all calls without warning, and start what runs them again."""
        raise NotImplementedError

    async def run(self, name: str, **arguments: Any) -> Response:
        """Make a one-shot call."""
        self._labels += 1
        return await self._call(f"call-{self._labels}", name, arguments)

    async def _call(self, label: str, name: str, arguments: dict[str, Any]) -> Response:
        if self._turn is None:
            self._turn = await self.runtime.turn(CONVERSATION).__aenter__()  # which a crash leaves open
        (response,) = await self._turn.run([ToolCall(label, name, arguments)])
        return response

    async def spawn(self, name: str, id: str = "w", **arguments: Any) -> None:
        """Spawn a tool; its call has the id of the handle, too."""
        response = await self._call(id, name, {"action": "spawn", "id": id, **arguments})
        assert not response.is_error, response.result

    async def abort(self, name: str, id: str = "w") -> Response:
        return await self.run(name, action="abort", id=id)

    async def send(self, value: Any, id: str = "w") -> None:
        await self.runtime.send(id, value, conversation=CONVERSATION)

    async def resolve(self, key: str, status: str, payload: Any = None) -> str:
        given = {"status": status} if status in ("timeout", "cancelled") else {"status": status, "payload": payload}
        return str(await self.runtime.resolve(key, given))

    async def info(self, id: str = "w") -> HandleInfo:
        return await self.runtime.handle(id, conversation=CONVERSATION)

    async def reaches(self, state: str, id: str = "w") -> None:
        async def so() -> bool:
            return (await self.info(id)).state == state

        await until(so)

    async def parked(self, id: str = "w") -> HandleInfo:
        async def so() -> bool:
            return (await self.info(id)).parked

        await until(so)
        return await self.info(id)

    async def ended(self, id: str = "w") -> HandleInfo:
        """Return the handle when it has stopped."""
        await self.reaches("stopped", id)
        return await self.info(id)


class Story:
    """The steps of a call over several lives, and the end of its first life."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.dies = True
        self._reached = asyncio.Event()

    def step(self, name: str, result: Any = None) -> Callable[[Any], Awaitable[Any]]:
        """Return a function that notes that it ran."""

        async def function(given: Any) -> Any:
            self.did.append(name)
            if isinstance(result, Exception):
                raise result
            return given if result is None else result

        return function

    async def cut_here(self) -> None:
        """End the first life here; the next one walks past."""
        if self.dies:
            self._reached.set()
            await asyncio.Event().wait()

    async def crash(self, site: Site) -> None:
        """Crash when the call has come to the end of its first life."""
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()
        self.dies = False
        await site.crash()


class EffectsSuite:
    """Subclass this, say how a site is made, and run its checks."""

    crashes = True
    """Whether calls survive `Site.crash`. If not, it is never called."""
    engine: str | None = None
    """The engine that runs the calls."""

    def make(self, tools: Sequence[Tool]) -> AbstractAsyncContextManager[Site]:
        """Return a new site that has these tools and nothing else."""
        raise NotImplementedError

    @classmethod
    def checks(cls) -> list[str]:
        """Return the names of the checks that such a site has to pass."""
        names = [name for name in sorted(dir(cls)) if name.startswith("check_")]
        return [name for name in names if cls.crashes or not getattr(getattr(cls, name), "crashing", False)]

    async def run(self, check: str) -> None:
        """Run one check on a site of its own."""
        await getattr(self, check)()

    def tool(self, **options: Any) -> Callable[[Callable[..., Any]], FunctionTool]:
        """Make a tool of the check's function: with durable effects, unless the options say otherwise."""
        return tool(**{"actions": TALKING, "on_crash": "replay", "engine": self.engine, **options})

    async def relive(self, tool: FunctionTool, story: Story) -> HandleInfo:
        """Spawn a tool, crash where its story says, and return how the next life ends."""
        async with self.make([tool]) as site:
            await site.spawn(tool.name)
            await story.crash(site)
            return await site.ended()


async def code_of(work: Awaitable[Any]) -> str | None:
    """Return the code of the error that this ends with, or None."""
    try:
        await work
    except ToolError as error:
        return error.code
    return None


async def until(condition: Callable[[], Any]) -> None:
    """Wait until something outside this loop is so."""
    limit = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < limit, f"did not come true in {PATIENCE:g} s"
        await asyncio.sleep(0.005)
