"""A conversation with a script, and everything that its listener hears: the words of the tests of the agent."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.agent.scripted import Script
from tests.wait_tools import with_wait_tools

from keephold import Runtime, Tool
from keephold.agent.conversation import Conversation
from keephold.agent.events import Event, Listener, Text, TurnAnswer
from keephold.errors import KeepholdError
from keephold.testing import VirtualClock

E = TypeVar("E")


class Talk:
    """One conversation."""

    def __init__(self, runtime: Runtime, conversation: Conversation) -> None:
        self.rt = runtime
        self.conversation = conversation
        self.events: list[Event] = []

    async def prompt(self, text: str = "Go.", *, then: Listener | None = None) -> TurnAnswer:
        return await self.conversation.prompt(text, listener=self._hearing(then))

    async def resume(self, *, then: Listener | None = None) -> TurnAnswer:
        return await self.conversation.resume(listener=self._hearing(then))

    def _hearing(self, then: Listener | None) -> Listener:
        def hear(event: Event) -> None:
            self.events.append(event)
            if then is not None:
                then(event)

        return hear

    def heard(self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def shown(self) -> str:
        return "".join(event.text for event in self.heard(Text))

    async def kinds(self) -> list[str]:
        """The kinds of the lines that are stored, but how turns ended."""
        return [line.kind for line in await self.conversation.lines() if line.kind != "ended"]


@asynccontextmanager
async def talking(
    script: Script,
    *tools: Tool,
    clock: VirtualClock | None = None,
    config: str | Path | None = None,
    store: str | None = None,
    id: str | None = "main",
    **more: Any,
) -> AsyncIterator[Talk]:
    """A runtime and a conversation of it, whose model is offered all wait tools. At its end the script was sent nothing
    that a provider would refuse."""
    async with with_wait_tools(tools, clock=clock, config=config, store=store, **more) as rt:
        yield Talk(rt, rt.conversation(id, model=script.model))
    assert script.invalid == []


def unreadable(store: Any, read: str, times: int) -> list[int]:
    """Let that read of the store fail so often; how often it has failed."""
    real, failed = getattr(store, read), [0]

    async def read_or_fail(*given: Any, **named: Any) -> Any:
        if failed[0] < times:
            failed[0] += 1
            raise KeepholdError("the store cannot be read: the cable is out", code="store_unavailable")
        return await real(*given, **named)

    setattr(store, read, read_or_fail)
    return failed


def written(directory: Path, text: str) -> Path:
    """A configuration."""
    file = directory / "keephold.toml"
    file.write_text(text)
    return file


def kinds(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]
