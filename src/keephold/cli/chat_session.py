"""A chat at a terminal: a loop of keys, and beside it one turn at a time, until the user leaves.

A line that is typed while a turn runs is said in that turn; if the turn ends first, the line begins the next one.
Ctrl-C cancels the turn, and leaves if pressed again. If the terminal goes away, the turn stays open in the store.
"""

import asyncio
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.agent.events import Event, Interjected
from keephold.cli.chat_lines import Piece, Style, Teller, running_line, usage_words, user_line
from keephold.cli.chat_screen import ChatScreen
from keephold.cli.keyboard import Gone, KeyPress, Tty
from keephold.cli.printing import duration, one_line, printable, state_words, table_lines
from keephold.cli.prompter import PAUSE_SECS, Typing
from keephold.control.control import Control
from keephold.control.handle_json import as_json, glance
from keephold.control.resolve_handle import find
from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.state import Stopped
from keephold.ids import root_of
from keephold.store.base import HandleQuery, Record, TranscriptLine, file_of
from keephold.tools.waiting import WAITING
from keephold.turn.notifications import AUTOMATIC

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.runtime import Runtime

_log = logging.getLogger("keephold.cli")

HELP = {
    "/ps": "list the live handles, also kept ones and those of sub-agents",
    "/attach ID": "take over the terminal of a handle; Ctrl-] detaches",
    "/abort ID": "abort a handle",
    "/usage": "show the tokens and the cost of this chat so far",
    "/help": "list the commands",
    "/quit": "leave; a running turn is cancelled",
}
_KEYS = (
    "A line that is typed while a turn runs is sent in that turn. Ctrl-C cancels the turn; twice, it leaves. "
    "Ctrl-D leaves when no turn runs."
)
_DETACHED = "`{}` is not in a store that another process can open; start the chat with a store that is a file"
_HOW_TO_LEAVE = "Ctrl-C again, or Ctrl-D, leaves. /help lists the commands."
_COMMAND = re.compile(r"/[a-z]*(\s|\Z)")
"""A path such as `/etc/hosts` is not a command."""
_LINES, _CHARACTERS = 10, 1000
"""How much of a message is shown when a conversation is continued."""


class ChatSession:
    """Runs one chat. `restore` puts the terminal back, if the user does not want to wait for the end."""

    def __init__(self, tty: Tty, *, restore: Callable[[], None]) -> None:
        self.screen = ChatScreen(tty, self._live)
        self.talked = False
        """Whether there was a turn."""
        self.failed = False
        """Whether the last turn ended with an error."""
        self._restore = restore
        self._teller = Teller()
        self._runtime: Runtime | None = None
        self._conversation: Conversation | None = None
        self._commands: Commands | None = None
        self._turn: asyncio.Task[None] | None = None
        self._began = 0.0
        self._cancelling = False
        self._hung_up = False
        self._warned = False  # the next Ctrl-C at the input line leaves
        self._queued: list[str] = []  # typed while a turn runs, and not sent yet
        self._history: list[str] = []
        self._recalled = 0  # how many lines back
        self._last_key = float("-inf")  # when it was pressed
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys: asyncio.Task[None] | None = None
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, runtime: "Runtime", conversation: "Conversation", prompt: str | None) -> None:
        """Talk until the user leaves; with a prompt, until that is answered."""
        self._runtime, self._conversation = runtime, conversation
        self._commands = Commands(runtime, conversation, self.screen, self.leave)
        runtime.registry.follow(conversation.id, self._followed)
        self._keys = asyncio.create_task(self._read())
        self._keys.add_done_callback(self._no_more_keys)
        try:
            if conversation.interrupted and not self._left.done():
                self._say("Resuming the last turn, which was interrupted.", "yellow")
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
        """Stop reading keys. Until then, Ctrl-C exits at once."""
        if self._keys is not None:
            self._keys.cancel()

    async def _whole(self, prompt: str | None) -> None:
        """Run one turn, and those of lines typed too late for it, until they end or the user leaves."""
        self._begin(prompt)
        while self._turn is not None and not self._left.done():
            await asyncio.wait((self._turn, self._left), return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self) -> None:
        if self._hung_up and self._runtime is not None:
            await self._runtime.close()  # first, because cancelling would end the turn
        tasks = [*self._tasks, *([self._turn] if self._turn is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.screen.show(Piece("end"))

    def leave(self) -> None:
        """Leave; a running turn is cancelled first."""
        if self._turn is not None and not self._cancelling:
            self._cancel()
            self._turn.add_done_callback(lambda _: self._leave())
        else:
            self._leave()

    def hang_up(self) -> None:
        """Leave because the terminal is gone; a running turn stays open in the store, to be resumed (R6)."""
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
        except Exception as error:  # a bug, here or in a model's code: the conversation is still there
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
        if self._queued:  # no turn will take it: the user can edit it and send it again
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

    # Running handles

    def _live(self) -> list[Piece]:
        lines = self._handles()
        lines += [Piece.line(f"> {one_line(text)}  (with the next request)", "dim") for text in self._queued]
        if self._turn is not None:
            since = duration(time.monotonic() - self._began)
            how = "cancelling; Ctrl-C again leaves" if self._cancelling else "Ctrl-C cancels"
            lines.append(Piece.line(f"  working {since}; {how}", "dim"))
        return lines

    def _handles(self) -> list[Piece]:
        if self._runtime is None or self._conversation is None:
            return []
        lines, now = [], self._runtime.registry.clock.now()
        for handle in self._runtime.registry.live():
            if handle.tool.name in WAITING and not handle.stateful:
                continue
            if handle.conversation == self._conversation.id:
                lines.append(running_line(handle, self._teller.calls.get(handle.call_id), now))
            elif root_of(handle.conversation) == self._conversation.id:
                shown = running_line(handle, None, now)
                lines.append(shown._replace(text=f"  {shown.text}"))
        return lines

    # Keys

    async def _read(self) -> None:
        with suppress(Gone):
            while True:
                self._pressed(await self.screen.tty.key())
        self.hang_up()

    def _no_more_keys(self, read: "asyncio.Task[None]") -> None:
        """End the chat if reading keys has failed."""
        if not read.cancelled() and (error := read.exception()) is not None and not self._left.done():
            self._left.set_exception(error)

    @property
    def typing(self) -> Typing | None:
        """The input line, if the user types: it is not empty, or a key was pressed just now."""
        lately = time.monotonic() - self._last_key < PAUSE_SECS
        return Typing(self.screen.typed, self._pressed) if self.screen.typed.text or lately else None

    def _pressed(self, key: KeyPress) -> None:
        typed, self._last_key = self.screen.typed, time.monotonic()
        self._warned = self._warned and key.name == "C-c"
        match key.name:
            case "C-c":
                self.interrupt()
            case "C-d" if not typed.text and self._turn is None:
                self.leave()
            case "C-d" if not typed.text:
                self._say("A turn is running: Ctrl-C cancels it, /quit leaves.", "dim")
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
        """Handle Ctrl-C: cancel the turn or, without one, clear the line; pressed again, leave."""
        if self._left.done():
            self._restore()
            os._exit(130)
        elif self._turn is not None and not self._cancelling:
            self._cancel()
        elif self._turn is not None or self._warned:
            self._leave()
        else:
            self._type("")
            self._say(_HOW_TO_LEAVE, "dim")
            self._warned = True

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
            task = asyncio.create_task(self._commands.run(text))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif self._turn is None:
            self.screen.show(user_line(text))
            self._begin(text)
        else:
            self._queued.append(text)
            if self._conversation.busy:
                self._conversation.say(text)
        self.screen.changed()

    def _say(self, text: str, style: Style) -> None:
        self.screen.show(Piece.line(text, style, whole=True))


class Commands:
    """Runs the lines that begin with `/`. Their output and errors go to the screen."""

    def __init__(
        self, runtime: "Runtime", conversation: "Conversation", screen: ChatScreen, leave: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._conversation = conversation
        self._screen = screen
        self._leave = leave

    async def run(self, line: str) -> None:
        try:
            await self._run(line)
        except KeepholdError as error:
            self._say(f"Error: {printable(error.message)}", "red", whole=True)

    async def _run(self, line: str) -> None:
        match line.split():
            case ["/ps"]:
                await self._ps()
            case ["/attach", id]:
                await self._attach(id)
            case ["/abort", id]:
                await self._abort(id)
            case ["/usage"]:
                self._say(usage_words(self._conversation.usage))
            case ["/help"]:
                for line in table_lines(list(HELP.items())):
                    self._say(line)
                self._say(_KEYS, whole=True)
            case ["/quit"]:
                self._leave()
            case [command, *_]:
                usage = next((known for known in HELP if known.split()[0] == command), None)
                right = "/help lists the commands" if usage is None else f"write {usage}"
                raise KeepholdError(f"no such command: `{one_line(line, 80)}`; {right}", code="invalid_arguments")

    async def _records(self) -> list[Record]:
        """Return the live handles of this conversation and of its sub-agents."""
        registry, here = self._runtime.registry, self._conversation.id
        running = dict.fromkeys(handle.conversation for handle in registry.live())
        conversations = dict.fromkeys([here, *(each for each in running if root_of(each) == here)])
        queries = [HandleQuery(conversation=each, live=True, stateful=None) for each in conversations]
        return [record for query in queries for record in await registry.store.handles(query)]

    async def _ps(self) -> None:
        records = await self._records()
        if not records:
            self._say("Nothing runs.")
            return
        store, now = self._runtime.registry.store, time.time()
        rows: list[tuple[str, ...]] = [("ID", "TOOL", "STATE", "CONVERSATION", "AGE")]
        for record in sorted(records, key=lambda record: record.state.created):
            fact = as_json(glance(store, record))
            where = "" if record.conversation == self._conversation.id else record.conversation
            texts = (record.id, record.tool, state_words(fact, now), where)
            rows.append((*(one_line(text) for text in texts), duration(now - fact["created"])))
        for line in table_lines(rows, shrinking=(0, 1, 2, 3)):
            self._say(line)

    async def _find(self, id: str) -> Record:
        """Return the handle of an id in this conversation, or else the live one of a sub-agent."""
        others = [r for r in await self._records() if id in (r.id, r.uid) and r.conversation != self._conversation.id]
        if len(others) == 1:
            return others[0]
        (record,) = await find(self._runtime.registry.store, (id,), self._conversation.id)
        return record

    async def _attach(self, id: str) -> None:
        """Run `keephold attach` in a process of its own."""
        record, store = await self._find(id), self._runtime.registry.store
        path = file_of(store)
        if path is None:
            raise KeepholdError(_DETACHED.format(id), code="unsupported_store")
        argv = [sys.executable, "-P", "-m", "keephold", "attach", record.uid, "--store", f"sqlite:///{path}"]
        async with self._screen.lent():
            with self._screen.tty.taken():
                await self._screen.tty.lend(argv)

    async def _abort(self, id: str) -> None:
        record = await self._find(id)
        if isinstance(record.state, Stopped):
            self._say(f"{one_line(id)} has stopped already.")
        else:
            await Control(self._runtime).abort(record.uid)

    def _say(self, text: str, style: Style = "", *, whole: bool = False) -> None:
        self._screen.show(Piece.line(text, style, whole=whole))


def continuing(id: str, options: dict[str, str | None]) -> str:
    """Return the command that continues a conversation, with the options of this one."""
    words = ["keephold", "chat", "--conversation", id]
    for option, value in options.items():
        words += [option, value] if value is not None else []
    return shlex.join(words)


def last_exchange(lines: Sequence[TranscriptLine]) -> list[Piece]:
    """Return the last prompt and its answer, clipped."""
    answer = ""
    for line in reversed(lines):
        if line.kind not in ("request", "response"):
            continue
        parts = msgspec.json.decode(line.body).get("parts", ())
        if line.kind == "response":
            texts = (part["content"] for part in parts if part.get("part_kind") == "text")
            answer = answer or "".join(texts)
        elif said := "\n".join(_said(parts)):
            return [user_line(_clipped(said)), *_answered(answer)]
    return _answered(answer)


def _said(parts: Iterable[dict[str, Any]]) -> list[str]:
    """Return the texts of the user in a request, with a mark for anything else."""
    texts = []
    for part in parts:
        content = part.get("content")
        if part.get("part_kind") == "user-prompt" and content and not str(content).startswith(AUTOMATIC):
            pieces = [content] if isinstance(content, str) else content
            texts += [piece if isinstance(piece, str) else "[…]" for piece in pieces]
    return texts


def _answered(text: str) -> list[Piece]:
    return [Piece.line(_clipped(text), whole=True)] if text.strip() else []


def _clipped(text: str) -> str:
    """Return the beginning of a text, safe to print."""
    text = printable(text).strip()
    kept = "\n".join(text[:_CHARACTERS].splitlines()[:_LINES])
    return kept if kept == text else f"{kept.rstrip()} …"
