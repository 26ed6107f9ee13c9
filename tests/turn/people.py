"""A person at the prompts and a model that is asked: the words in which the tests of questions and permission are
written.

Both say what they were given beforehand, one thing for each time they are asked; when that is used up, what is asked
stays open until the test says something.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keephold import Runtime, Tool, Turn
from keephold.handles.clock import Clock
from keephold.store.base import Store
from keephold.turn.inquiry import Inquiry
from keephold.turn.prompts import AskQuestion, Decision, DeliverResult, RunTool


class Asked:
    """Somebody who is asked one thing after the other."""

    def __init__(self, *ready: Any) -> None:
        self.ready = deque(ready)
        self.seen: list[Any] = []
        """All that was asked, in order."""
        self.withdrawn: list[Any] = []
        """What was asked and taken back."""
        self.at_once = 0
        """The most that was open at one time."""
        self._open: list[tuple[Any, asyncio.Future[Any]]] = []
        self._news = asyncio.Event()

    async def __call__(self, what: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        this = (what, answer)
        self.seen.append(what)
        self._open.append(this)
        self.at_once = max(self.at_once, len(self._open))
        self._news.set()
        if self.ready:
            self._say(answer, self.ready.popleft())
        try:
            return await answer
        except asyncio.CancelledError:
            self.withdrawn.append(what)
            raise
        finally:
            if this in self._open:
                self._open.remove(this)
            self._news.set()

    @property
    def open(self) -> list[Any]:
        """What they have not answered yet."""
        return [what for what, answer in self._open if not answer.done()]

    async def sees(self) -> Any:
        """What they are asked, the oldest first, once they are."""
        while not self.open:
            self._news.clear()
            await self._news.wait()
        return self.open[0]

    async def says(self, decision: Any) -> Any:
        """They answer what they are asked, and what that was."""
        what = await self.sees()
        answer = next(answer for each, answer in self._open if each is what)
        self._say(answer, decision)
        return what

    async def sees_nothing(self) -> None:
        """Until nothing is open any more."""
        while self._open:
            self._news.clear()
            await self._news.wait()

    def _say(self, answer: "asyncio.Future[Any]", said: Any) -> None:
        if isinstance(said, BaseException):
            answer.set_exception(said)
        else:
            answer.set_result(said)


class Person(Asked):
    """`Runtime(prompter=person)`."""

    seen: list[RunTool | DeliverResult | AskQuestion]

    async def says(self, decision: Decision | object) -> Any:
        return await super().says(decision)


class Model(Asked):
    """`Runtime(inquiry=model)`. What it is given to say is the value of `answer`, or all of it in `exactly`."""

    seen: list[Inquiry]

    def _say(self, answer: "asyncio.Future[Any]", said: Any) -> None:
        if isinstance(said, exactly):
            answer.set_result(said.what)
        elif isinstance(said, BaseException):
            answer.set_exception(said)
        else:
            answer.set_result({"answer": said})


class exactly:  # noqa: N801 (read as a word)
    """All that a model says, not only the value of its answer."""

    def __init__(self, what: Any) -> None:
        self.what = what


@asynccontextmanager
async def attended(
    clock: Clock | None,
    tools: list[Tool],
    *,
    person: Person | None = None,
    model: Model | None = None,
    config: Path | None = None,
    store: str | Store | None = None,
    conversation: str = "main",
) -> AsyncIterator[tuple[Runtime, Turn]]:
    """A runtime with somebody there, and a turn of it."""
    async with (
        Runtime(tools, clock=clock, config=config, store=store, prompter=person, inquiry=model) as rt,
        rt.turn(conversation) as turn,
    ):
        yield rt, turn


async def few(passes: int = 10) -> None:
    """Let everything that is ready happen, without time passing."""
    for _ in range(passes):
        await asyncio.sleep(0)
