"""What a person may say to a chat itself: lines that begin with `/`."""

import asyncio
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from keephold.cli.chat_calls import Style
from keephold.cli.chat_lines import Piece, usage_words
from keephold.cli.chat_screen import Screen
from keephold.cli.printing import duration, one_line, printable, table
from keephold.cli.records import facts, find, standing
from keephold.errors import KeepholdError
from keephold.handles.state import Reply
from keephold.store.base import Record
from keephold.turn.slot import slot_of

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.runtime import Runtime

HELP = {
    "/ps": "what runs here: kept handles and those of sub-agents, too",
    "/attach ID": "take over the terminal of a handle; Ctrl-] brings you back",
    "/abort ID": "end a handle",
    "/usage": "what this chat has taken so far",
    "/help": "this list",
    "/quit": "leave; a turn that runs is cancelled",
}
_KEYS = (
    "A line that is typed while a turn runs is said in it. Ctrl-C cancels the turn; twice, it leaves. "
    "Ctrl-D leaves when no turn runs."
)
_LIVE = ("pending", "running", "waiting")
_DETACHED = "`{}` is in no store that another process could reach it by; start the chat with a store that is a file"


class Commands:
    """Runs them. What they print goes to the screen; what goes wrong, too."""

    def __init__(
        self, runtime: "Runtime", conversation: "Conversation", screen: Screen, leave: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._conversation = conversation
        self._screen = screen
        self._leave = leave

    async def run(self, line: str) -> None:
        """Run a command."""
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
                width = max(map(len, HELP))
                for command, meaning in HELP.items():
                    self._say(f"{command:{width}}  {meaning}")
                self._say(_KEYS, whole=True)
            case ["/quit"]:
                self._leave()
            case [command, *_]:
                usage = next((known for known in HELP if known.split()[0] == command), None)
                right = "/help lists the commands" if usage is None else f"write {usage}"
                raise KeepholdError(f"no such command: `{one_line(line, 80)}`; {right}", code="invalid_arguments")

    async def _records(self) -> list[Record]:
        """Whatever lives here, and in the conversations of sub-agents."""
        registry, here = self._runtime.registry, self._conversation.id
        running = dict.fromkeys(handle.conversation for handle in registry.live())
        conversations = dict.fromkeys([here, *(each for each in running if self._runtime.root(each) == here)])
        return [
            record
            for conversation in conversations
            for state in _LIVE
            for record in await registry.store.handles(conversation=conversation, state=state, stateful=None)
        ]

    async def _ps(self) -> None:
        records = await self._records()
        if not records:
            self._say("Nothing runs.")
            return
        store, now = self._runtime.registry.store, time.time()
        rows: list[tuple[str, ...]] = [("ID", "TOOL", "STATE", "CONVERSATION", "AGE")]
        for record in sorted(records, key=lambda record: record.state.created):
            fact = facts(store, record)
            where = "" if record.conversation == self._conversation.id else record.conversation
            texts = (record.id, record.tool, standing(fact, now), where)
            rows.append((*(one_line(text) for text in texts), duration(now - fact["created"])))
        for row in table(rows, shrinking=(0, 1, 2, 3)):
            self._say("  ".join(row).rstrip())

    async def _find(self, id: str) -> Record:
        """The handle of that id: of this conversation or, if it has none, the live one of a sub-agent."""
        others = [r for r in await self._records() if id in (r.id, r.uid) and r.conversation != self._conversation.id]
        if len(others) == 1:
            return others[0]
        (record,) = await find(self._runtime.registry.store, (id,), self._conversation.id)
        return record

    async def _attach(self, id: str) -> None:
        """By `keephold attach`: the program's terminal and this one are the business of a process of its own."""
        record, store = await self._find(id), self._runtime.registry.store
        path = getattr(store, "path", None)
        if path is None:
            raise KeepholdError(_DETACHED.format(id), code="unsupported_store")
        argv = [sys.executable, "-m", "keephold", "attach", record.uid, "--store", f"sqlite:///{path}"]
        async with self._screen.lent():
            with self._screen.tty.taken():
                await self._screen.tty.lend(argv)

    async def _abort(self, id: str) -> None:
        record = await self._find(id)
        runtime = self._runtime
        handle = runtime.registry.adopt(record)
        if not handle.active:
            self._say(f"{one_line(id)} has stopped already.")
            return
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        slot = slot_of(handle, "abort", {}, by="person")

        def answer(reply: Reply) -> None:
            if not answered.done():
                answered.set_result(reply)

        if runtime.relay.elsewhere(handle):
            runtime.relay.ask(handle, slot, answer)
        else:
            runtime.actions.act(slot, handle, answer)
        reply = await answered
        if reply.is_error:
            raise KeepholdError(reply.result, code=reply.code or "tool_error")

    def _say(self, text: str, style: Style = "", *, whole: bool = False) -> None:
        self._screen.show(Piece("line", text, style, whole))


def continuing(id: str, options: dict[str, str | None]) -> str:
    """The command that continues a conversation, with the options this one was started with."""
    words = ["keephold", "chat", "--conversation", id]
    for option, value in options.items():
        words += [option, value] if value is not None else []
    return shlex.join(words)
