"""A chat without a screen: each line of stdin is a prompt, answers go to stdout as text or JSON, the rest to stderr."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import click

from keephold.agent.events import Event, TurnAnswer
from keephold.cli.chat_lines import Piece, Teller
from keephold.cli.printing import print_json
from keephold.cli.process import in_thread
from keephold.handles.handle import Handle
from keephold.handles.state import Stopped
from keephold.turn.prompts import Decision, Prompt, Prompter

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.runtime import Runtime


LATE_SECS = 3.0
"""If piped input has not ended after this time, the user gets a hint."""
_LATE = "Reading piped input until its end; use `</dev/null` if there is none."


class InputLines:
    """The lines of an input, or all of it."""

    def __init__(self, source: BinaryIO, *, person: bool) -> None:
        self._source = source
        self._person = person
        self.reading = asyncio.Lock()
        """Held while the user types a line: nothing else may read that terminal then."""

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._line():
            if text := line.decode(errors="replace").strip():
                yield text

    async def after(self, prompt: str) -> AsyncIterator[str]:
        """Yield a single prompt, followed by the piped input, if there is any."""
        text = (await self._whole()).decode(errors="replace").strip("\r\n")
        yield f"{prompt}\n\n{text}" if text.strip() else prompt

    async def _whole(self) -> bytes:
        if self._person or not _piped(self._source.fileno()):
            return b""
        late = asyncio.get_running_loop().call_later(LATE_SECS, partial(click.echo, _LATE, err=True))
        try:
            return await in_thread(self._source.read)
        finally:
            late.cancel()

    async def _line(self) -> bytes:
        async with self.reading:
            if self._person:
                click.echo("> ", nl=False, err=True)
            return await in_thread(self._source.readline)

    def prompting(self, prompter: Prompter) -> Prompter:
        """Return a prompter that asks while no line is read."""

        async def ask(prompt: Prompt) -> Decision:
            async with self.reading:
                return await prompter(prompt)

        return ask


class PlainChat:
    """Runs prompts one after the other, until there are no more or it is stopped."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._teller = Teller()
        self._within = False  # the last line of the answer has no end yet
        self._conversation: Conversation | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._left = asyncio.Event()
        self.talked = False
        """There was a turn."""
        self.failed = False
        """The last one ended with an error."""
        self._unwritten: OSError | None = None

    def begin(self, id: str, *, new: bool) -> None:
        """Print the conversation's id as the first line of JSON."""
        if self._as_json:
            self._print(lambda: print_json({"type": "Conversation", "id": id, "new": new}))

    async def run(self, runtime: "Runtime", conversation: "Conversation", prompts: AsyncIterator[str]) -> None:
        self._conversation = conversation
        runtime.registry.follow(conversation.id, self._followed)
        self._task = asyncio.create_task(self._run(conversation, prompts))
        left = asyncio.create_task(self._left.wait())
        try:
            await asyncio.wait((self._task, left), return_when=asyncio.FIRST_COMPLETED)
            if not self._task.done():
                await runtime.close()  # first, because cancelling would end the turn
            elif not self._task.cancelled():
                self._task.result()
        finally:
            for task in (self._task, left):
                task.cancel()
            await asyncio.gather(self._task, left, return_exceptions=True)
        if self._unwritten is not None:
            raise self._unwritten

    async def _run(self, conversation: "Conversation", prompts: AsyncIterator[str]) -> None:
        if conversation.interrupted:
            click.echo("Resuming the last turn, which was interrupted.", err=True)
            self.talked = True
            self._over(await conversation.resume(listener=self._hear))
        if self._stopped.is_set():
            return
        async for prompt in prompts:
            self.talked = True
            self._over(await conversation.prompt(prompt, listener=self._hear))
            if self._stopped.is_set():
                return

    def _over(self, answer: TurnAnswer) -> None:
        self.failed = answer.stop_reason == "error"

    def stop(self) -> None:
        """Cancel the turn that runs; no other follows."""
        self._stopped.set()
        if self._conversation is not None and self._conversation.busy:
            self._conversation.cancel()
        elif self._task is not None:
            self._task.cancel()

    def leave(self) -> None:
        """Leave at once; a running turn stays open in the store, to be resumed (R6)."""
        self._left.set()

    def _hear(self, event: Event) -> None:
        if self._as_json:
            self._print(lambda: print_json(event))
        else:
            for piece in self._teller.hear(event):
                self._show(piece)

    def _followed(self, handle: Handle) -> None:
        if isinstance(handle.state, Stopped) and not self._as_json:
            for piece in self._teller.stopped(handle):
                self._show(piece)

    def _show(self, piece: Piece) -> None:
        match piece.kind:
            case "answer":
                self._within = not piece.text.endswith("\n")
                self._print(lambda: click.echo(piece.text, nl=False))
            case "end" if self._within:
                self._within = False
                self._print(click.echo)
            case "line" if not piece.text.startswith("> "):
                click.echo(piece.text, err=True)

    def _print(self, printing: Callable[[], None]) -> None:
        try:
            printing()
        except BrokenPipeError:  # nobody reads stdout any more
            self.stop()
        except OSError as error:  # raised after the turn: a listener of events must not raise
            self._unwritten = error
            self.stop()


def _piped(fd: int) -> bool:
    """Return whether a descriptor is a pipe, a file or a socket; /dev/null is not."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
