"""The processes that are killed while news waits (N3, N5): scenes of their own, in which the assistant does not look.

    python -m tests.crash.notified SOCKET

is a nursery like that of `child.py`. What rides on a response is part of the report of that response, so that a kill
cannot come between the two.
"""

import itertools
import re
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.crash import scenes, stage
from tests.crash.child import nursery
from tests.crash.talk import Play, Talk, _Entered, until_it_writes
from tests.crash.tools import TOOLS
from tests.crash.world import Report

from keephold import Response, Tool
from keephold.turn.notifications import Notification

_labels = itertools.count(1)
_END = re.compile(r"`(\w+)` \(\w+\) (?:stopped|failed)")
_SHOWN = re.compile(r'{"id":"(\w+)","state":"stopped"')
_TRIES = 3
"""Batches that news may need to come; after that the parent finds out what is missing."""


class Ear(Talk):
    """A turn in which the assistant listens."""

    @property
    def conversation(self) -> str:
        return self._turn.conversation

    def told(self, kind: str, responses: Sequence[Response], **facts: Any) -> None:
        given = [[response.id, response.result, response.is_error] for response in responses]
        news = [line for response in responses for line in _lines(response.notifications)]
        self._say(kind, responses=given, notifications=news, **facts)

    def _label(self) -> str:  # a conversation has several turns here
        return f"{self._turn.conversation}-{self._play.world.run}-{next(_labels)}"

    def _say(self, kind: str, **facts: Any) -> None:
        self._play.world.say(kind, conversation=self._turn.conversation, turn=self._turn.id, **facts)

    async def until_heard(self, *ids: str) -> None:
        """Call something else until the assistant knows of the ends of all of these, in this run or one before."""
        for _ in range(_TRIES):
            if {(self._turn.conversation, id) for id in ids} <= known(self._play.world.reports):
                return
            await self.run(("hello", {"name": "you"}))

    async def take(self) -> None:
        """What rides on a user's message."""
        self._say("message", notifications=_lines(await self._turn.notifications()))


@asynccontextmanager
async def listening(play: Play, conversation: str) -> AsyncIterator[Ear]:
    """Like `Play.turn`: the turn that a run before left open, or a new one."""
    turn = play.runtime.turn(conversation, resume=True)
    await until_it_writes(turn.__aenter__)
    async with _Entered(turn):
        ear = Ear(play, turn)
        if turn.unfinished is not None:
            calls = [call.id for call in turn.unfinished.calls]
            ear.answered(calls, await turn.resume(), resumed=True)
        elif turn.answered is not None:  # it may not have arrived
            ear.told("recalled", turn.answered)
        yield ear


def told_of(report: Report) -> set[str]:
    """The ids of handles whose end this report told as news."""
    return {about[1] for line in report.get("notifications", ()) if (about := _END.match(line))}


def shown_in(report: Report) -> set[str]:
    """The ids of handles whose end this report showed: a spawn that is answered after a crash does."""
    return {about[1] for _, result, _ in report.get("responses", ()) if (about := _SHOWN.match(result))}


def known(reports: Iterable[Report]) -> set[tuple[str, str]]:
    """Conversation and id of the handles whose end the assistant knows of."""
    return {(each["conversation"], id) for each in reports for id in told_of(each) | shown_in(each)}


def _lines(notifications: Sequence[Notification]) -> list[str]:
    return [each.message for each in notifications]


async def unwatched(play: Play) -> None:
    """They end while nobody looks."""
    async with listening(play, "unwatched") as ear:
        await ear.spawn("plain", "p")
        await ear.spawn("pipeline", "q")
        await play.runtime.wait(all=["p", "q"], conversation="unwatched")
        await ear.until_heard("p", "q")


async def between(play: Play) -> None:
    """Completed between two turns."""
    async with listening(play, "between") as ear:
        await ear.spawn("approve", "a")
        await ear.parked("a")
    if play.world.find("key", name="between"):
        await play.resolve("between")
    async with listening(play, "between") as ear:
        await play.runtime.wait(all=["a"], conversation="between")
        await ear.until_heard("a")


async def left(play: Play) -> None:
    """Waited for at the end of a turn that is left without another word (T3)."""
    async with listening(play, "left") as ear:
        await ear.spawn("plain", "p")
    async with listening(play, "left") as ear:
        await ear.until_heard("p")


async def told(play: Play) -> None:
    """A program tells something."""
    text = f"told in run {play.world.run}"
    await until_it_writes(lambda: play.runtime.notify("a.b", "warning", text, conversation="told"))
    play.world.say("notified", text=text)
    async with listening(play, "told") as ear:
        await ear.run(("hello", {"name": "you"}))


async def message(play: Play) -> None:
    """Heard with the user's message."""
    async with listening(play, "message") as ear:
        await ear.spawn("plain", "p")
        await play.runtime.wait(all=["p"], conversation="message")
    async with listening(play, "message") as ear:
        await ear.take()


SCENES: dict[str, scenes.Scene] = {each.__name__: each for each in (unwatched, between, left, told, message)}


def _awaited(tool: Tool) -> Tool:
    return replace(tool, spawn=replace(tool.spawn, on_turn_end="await"))


if __name__ == "__main__":
    scenes.ALL.update(SCENES)
    tools = tuple(_awaited(tool) if tool.name == "plain" else tool for tool in TOOLS)
    setattr(stage, "TOOLS", tools)  # noqa: B010
    with socket.socket(fileno=int(sys.argv[1])) as control:
        nursery(control)
