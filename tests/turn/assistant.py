"""Assistants that are asked at the end of a turn (T2), and a tool that still runs then."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import keephold
from keephold import Call
from keephold.turn.inquiry import Inquire, Inquiry


class Assistant:
    """Says the same about every handle it is asked about, after `meanwhile`; keeps what it was asked."""

    def __init__(self, action: str = "wait", meanwhile: Callable[[Inquiry], Awaitable[None]] | None = None) -> None:
        self.asked: list[Inquiry] = []
        self._action = action
        self._meanwhile = meanwhile

    async def __call__(self, inquiry: Inquiry) -> Any:
        self.asked.append(inquiry)
        if self._meanwhile is not None:
            await self._meanwhile(inquiry)
        return {"handles": [{"id": each["id"], "action": self._action} for each in inquiry.handles]}


def saying(answer: Any) -> Inquire:
    """An assistant that answers this, or what this function makes of the inquiry."""

    async def inquire(inquiry: Inquiry) -> Any:
        return answer(inquiry) if callable(answer) else answer

    return inquire


async def silent(inquiry: Inquiry) -> Any:
    """An assistant that never answers."""
    await asyncio.Event().wait()


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def work(call: Call, secs: float = 600, says: str = "") -> str:
    """Takes its time."""
    if says:
        call.emit(says)
    await asyncio.sleep(secs)
    return "done"
