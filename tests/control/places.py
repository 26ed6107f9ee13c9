"""A control that is looked through, and the runtime that runs what it looks at: the same one, or another. And the
open requests of a runtime, as somebody has them who decides from their list."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.durable.lives import stored_in
from tests.patience import PATIENCE

from keephold import Runtime, Tool
from keephold.control.control import Control
from keephold.control.open_requests import described
from keephold.turn.prompts import Decided

PLACES = ("memory", "sqlite", "elsewhere")
"""Where the handles are: in a store that does not last, in one that does, and run by another process of that store."""


@asynccontextmanager
async def controlled(place: str, directory: Path, tools: Sequence[Tool]) -> AsyncIterator[tuple[Control, Runtime]]:
    """The control, and the runtime that has these tools."""
    store = "memory:" if place == "memory" else stored_in(directory)
    async with Runtime(tools, store=store) as rt:
        if place != "elsewhere":
            yield Control(rt), rt
            return
        async with Runtime(store=store) as looking:
            yield Control(looking), rt


class Needs:
    """The questions and approvals that a runtime asks its user for."""

    def __init__(self, rt: Runtime) -> None:
        self._approvals = rt.approvals

    def __len__(self) -> int:
        return len(self._approvals.open)

    def listed(self) -> list[dict[str, Any]]:
        return [described(id, asking.prompt, asking.since) for id, asking in self._approvals.open.items()]

    def decide(self, id: str, said: dict[str, Any]) -> Decided:
        return self._approvals.decide(id, said, None)


async def uid_of(rt: Runtime, id: str, conversation: str = "main") -> str:
    return (await rt.handle(id, conversation=conversation)).uid


async def heard(control: Control, uid: str, offset: int = 0) -> list[dict[str, Any]]:
    """All that following a handle tells, until it ends."""
    async with asyncio.timeout(PATIENCE):
        return [told async for told in control.follow(uid, offset)]


def text_of(told: Sequence[dict[str, Any]]) -> str:
    return "".join(each["text"] for each in told if each["type"] == "output")
