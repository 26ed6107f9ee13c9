"""A chat at a terminal: what the person types, turn after turn, until they leave.

One loop of keys and one turn at a time beside it. A line that is typed while a turn runs is said in that turn; if the
turn ends before it was taken, it begins the next one. Ctrl-C cancels the turn, and leaves if that was tried before. A
terminal that goes away cancels nothing: the turn stays open in the store.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from keephold.agent.events import Event, Interjected
from keephold.cli.chat_calls import Line, Style, running_line
from keephold.cli.chat_commands import Commands
from keephold.cli.chat_lines import Piece, Teller, user_line
from keephold.cli.chat_screen import Screen
from keephold.cli.keyboard import Gone, Key, Tty
from keephold.cli.printing import duration, one_line, printable
from keephold.cli.prompter import PAUSE_SECS, Typing
from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.state import Stopped

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.runtime import Runtime

_log = logging.getLogger("keephold.cli")

_HOW_TO_LEAVE = "Ctrl-C again, or Ctrl-D, leaves. /help lists what else there is."
_COMMAND = re.compile(r"/[a-z]*(\s|\Z)")
"""A path is none."""
_QUIET = ("await", "wait_for", "wait_for_multiple")
"""What waits for others that have lines of their own."""


class Session:
    """From the first line to the last. `abandon` is for a person who does not want to wait for the end."""

    def __init__(self, tty: Tty, *, abandon: Callable[[], None]) -> None:
        self.screen = Screen(tty, self._live)
        self.talked = False
        """There was a turn."""
        self.failed = False
        """The last one ended with an error."""
        self._abandon = abandon
        self._teller = Teller()
        self._runtime: Runtime | None = None
        self._conversation: Conversation | None = None
        self._commands: Commands | None = None
        self._turn: asyncio.Task[None] | None = None
        self._began = 0.0
        self._cancelling = False
        self._hung_up = False
        self._warned = False  # the next Ctrl-C at the input line leaves
        self._queued: list[str] = []  # said while a turn runs, and not taken yet
        self._history: list[str] = []
        self._recalled = 0  # how many lines back
        self._last_key = float("-inf")  # when it was pressed
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys: asyncio.Task[None] | None = None
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, runtime: "Runtime", conversation: "Conversation", prompt: str | None) -> None:
        """Talk until the person leaves; with a prompt, until that is answered."""
        self._runtime, self._conversation = runtime, conversation
        self._commands = Commands(runtime, conversation, self.screen, self.leave)
        runtime.registry.followers.setdefault(conversation.id, []).append(self._followed)
        self._keys = asyncio.create_task(self._read())
        self._keys.add_done_callback(self._no_more_keys)
        try:
            if conversation.interrupted and not self._left.done():
                self._say("The last turn was interrupted; it goes on.", "yellow")
                await self._whole(None)
            if prompt is not None and not self._left.done():
                self.screen.show(user_line(prompt))
                await self._whole(prompt)
            elif not self._left.done():
                await asyncio.wait([self._left])
        finally:
            await self._finish()
        if self._left.done():
            self._left.result()

    def close(self) -> None:
        """Read no more keys. Until then Ctrl-C abandons whatever is still being ended."""
        if self._keys is not None:
            self._keys.cancel()

    async def _whole(self, prompt: str | None) -> None:
        """One turn, and those of what was said in it too late; until its end, or until the person leaves."""
        self._begin(prompt)
        while self._turn is not None and not self._left.done():
            await asyncio.wait((self._turn, self._left), return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self) -> None:
        if self._hung_up and self._runtime is not None:
            await self._runtime.close()  # before the turn is cancelled, which would be its end
        tasks = [*self._tasks, *([self._turn] if self._turn is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.screen.show(Piece("end"))

    def leave(self) -> None:
        """Leave; a turn that runs is cancelled first."""
        if self._turn is not None and not self._cancelling:
            self._cancel()
            self._turn.add_done_callback(lambda _: self._leave())
        else:
            self._leave()

    def hang_up(self) -> None:
        """Leave because nobody is there any more; a turn that runs is left as it is, to be gone on with (R6)."""
        self._hung_up = self._turn is not None and not self._cancelling
        self._leave()

    def _leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)

    # Turns

    def _begin(self, prompt: str | None) -> None:
        self._began, self._cancelling = time.monotonic(), False
        self._turn = asyncio.create_task(self._run_turn(prompt))

    async def _run_turn(self, prompt: str | None) -> None:
        conversation = self._conversation
        assert conversation is not None
        self.talked, self.failed = True, True
        try:
            if prompt is None:
                answer = await conversation.resume(listener=self._hear)
            else:
                answer = await conversation.prompt(prompt, listener=self._hear)
            self.failed = answer.stop_reason == "error"
        except KeepholdError as error:
            if not self._hung_up:
                self._say(f"Error: {printable(error.message)}", "red")
        except Exception as error:  # a mistake of ours, or of a model's own code: the conversation is still there
            self._say(f"Error: {type(error).__name__}: {printable(str(error))}", "red")
            _log.debug("a turn failed", exc_info=True)
        finally:
            self._turn = None
            self.screen.changed()
        if self._queued and not self._left.done():
            late, self._queued = "\n".join(self._queued), []
            self.screen.show(user_line(late))
            self._begin(late)

    def _cancel(self) -> None:
        assert self._conversation is not None
        self._cancelling = True
        if self._queued:  # nobody will hear it now: it is there to be sent again, or changed
            self._type("\n".join([*self._queued, *filter(None, [self.screen.typed.text])]))
            self._queued.clear()
        self._conversation.cancel()
        self.screen.changed()

    def _hear(self, event: Event) -> None:
        if isinstance(event, Interjected) and event.text in self._queued:
            self._queued.remove(event.text)
        for piece in self._teller.hear(event):
            self.screen.show(piece)
        self.screen.changed()

    def _followed(self, handle: Handle) -> None:
        if isinstance(handle.state, Stopped):
            for piece in self._teller.stopped(handle):
                self.screen.show(piece)
        self.screen.changed()

    # What runs

    def _live(self) -> list[Line]:
        lines = self._handles()
        lines += [Line(f"> {one_line(text)}  (with the next request)", "dim") for text in self._queued]
        if self._turn is not None:
            since = duration(time.monotonic() - self._began)
            how = "cancelling; Ctrl-C again leaves" if self._cancelling else "Ctrl-C cancels"
            lines.append(Line(f"  working {since}; {how}", "dim"))
        return lines

    def _handles(self) -> list[Line]:
        if self._runtime is None or self._conversation is None:
            return []
        lines, now = [], self._runtime.registry.clock.now()
        for handle in self._runtime.registry.live():
            if handle.tool.name in _QUIET and not handle.stateful:
                continue
            if handle.conversation == self._conversation.id:
                lines.append(running_line(handle, self._teller.calls.get(handle.call_id), now))
            elif self._runtime.root(handle.conversation) == self._conversation.id:
                text, style = running_line(handle, None, now)
                lines.append(Line(f"  {text}", style))
        return lines

    # Keys

    async def _read(self) -> None:
        with suppress(Gone):
            while True:
                self._pressed(await self.screen.tty.key())
        self.hang_up()

    def _no_more_keys(self, read: "asyncio.Task[None]") -> None:
        """Whatever went wrong: a chat that hears nobody is over."""
        if not read.cancelled() and (error := read.exception()) is not None and not self._left.done():
            self._left.set_exception(error)

    @property
    def typing(self) -> Typing | None:
        """The line at which the person is: something is in it, or was just now. None: nobody types."""
        lately = time.monotonic() - self._last_key < PAUSE_SECS
        return Typing(self.screen.typed, self._pressed) if self.screen.typed.text or lately else None

    def _pressed(self, key: Key) -> None:
        typed, self._last_key = self.screen.typed, time.monotonic()
        self._warned = self._warned and key.name == "C-c"
        match key.name:
            case "C-c":
                self.interrupt()
            case "C-d" if not typed.text:
                self._end_of_input()
            case "enter":
                text = typed.text.strip()
                self._type("")
                if text:
                    self._entered(text)
            case "up" | "down":
                self._recall(1 if key.name == "up" else -1)
            case _:
                typed.press(key)
        self.screen.typing()

    def interrupt(self) -> None:
        """Ctrl-C: cancels the turn or, without one, clears the line; said before, leaves."""
        if self._left.done():
            self._abandon()
        elif self._turn is not None and not self._cancelling:
            self._cancel()
        elif self._turn is not None or self._warned:
            self._leave()
        else:
            self._type("")
            self._say(_HOW_TO_LEAVE, "dim")
            self._warned = True

    def _end_of_input(self) -> None:
        if self._turn is None:
            self.leave()
        else:
            self._say("A turn is running: Ctrl-C cancels it, /quit leaves.", "dim")

    def _recall(self, step: int) -> None:
        self._recalled = min(max(self._recalled + step, 0), len(self._history))
        self._type(self._history[-self._recalled] if self._recalled else "", recalled=self._recalled)

    def _type(self, text: str, recalled: int = 0) -> None:
        typed = self.screen.typed
        typed.text, typed.at, self._recalled = text, len(text), recalled

    def _entered(self, text: str) -> None:
        if self._history[-1:] != [text]:
            self._history.append(text)
        assert self._conversation is not None and self._commands is not None
        if _COMMAND.match(text):
            self.screen.show(user_line(text))
            self._soon(self._commands.run(text))
        elif self._turn is None:
            self.screen.show(user_line(text))
            self._begin(text)
        else:
            self._queued.append(text)
            if self._conversation.busy:
                self._conversation.say(text)
        self.screen.changed()

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, text: str, style: Style) -> None:
        self.screen.show(Piece("line", text, style, whole=True))
