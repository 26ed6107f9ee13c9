"""`keephold chat`: a conversation with a model that has the tools of a configuration (G1), on a screen or line by line
without a terminal."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from keephold.cli.chat_lines import Piece
from keephold.cli.chat_session import continuing, last_exchange
from keephold.cli.keyboard import Tty, open_tty
from keephold.cli.parameters import NAME, config_option, detached_option, model_option, the_config
from keephold.cli.printing import one_line
from keephold.cli.process import Signals, open_stdin, own_children
from keephold.cli.prompter import TerminalPrompter, open_prompter
from keephold.cli.store import store_of, store_option
from keephold.config import Config
from keephold.runtime import Runtime
from keephold.turn.prompts import Decision, Dismissed, Prompt, Prompter

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.cli.chat_screen import ChatScreen
    from keephold.cli.chat_session import ChatSession

CONNECT_SECS = 10.0
"""How long to wait for the tools of MCP servers before the first turn; they may come later."""
_NEW = "There is no conversation `{}` yet: it is a new one."


class _Wanted(NamedTuple):
    config: Config
    store: str
    model: str | None
    conversation: str | None
    prompt: str | None
    detached: bool
    as_json: bool

    def runtime(self, prompter: Prompter | None) -> Runtime:
        own_children()
        return Runtime(store=self.store, config=self.config, prompter=prompter)

    async def open(self, runtime: Runtime) -> "Conversation":
        conversation = runtime.conversation(self.conversation, model=self.model)
        await conversation.open()
        await runtime.connected(CONNECT_SECS)
        return conversation


class _Left(NamedTuple):
    """How a chat was left."""

    conversation: str
    talked: bool
    failed: bool
    code: int
    """The exit code, if a signal ended the chat; else 0."""


@click.command()
@click.argument("PROMPT", required=False)
@model_option
@click.option(
    "--conversation", metavar="ID", type=NAME, help="Continue this conversation, or start it. Default: a new one."
)
@config_option
@store_option
@detached_option
@click.option("--json", "as_json", is_flag=True, help="Print events as one JSON object a line.")
def chat(
    prompt: str | None,
    model: str | None,
    conversation: str | None,
    config: Path | None,
    store: str | None,
    detached: bool,
    as_json: bool,
) -> None:
    """Talk to a model that has the tools of the configuration.

    With a PROMPT, it runs one turn and exits; piped input is added to the prompt. Otherwise, without a terminal, each
    line of stdin is a prompt. Answers are printed as text.
    """
    if prompt is not None and not prompt.strip():
        raise click.UsageError("the PROMPT is empty; say something, or leave it out")
    loaded = the_config(config)
    wanted = _Wanted(loaded, store or store_of(loaded), model, conversation, prompt, detached, as_json)
    tty = None if as_json else _screen_tty()
    left = asyncio.run(_plain(wanted) if tty is None else _terminal(wanted, tty))
    if conversation is not None or left.talked:
        source = click.get_current_context().get_parameter_source("store")
        named = store if source is click.core.ParameterSource.COMMANDLINE else None  # else the next one finds it again
        options = {"--model": model, "--config": None if config is None else str(config), "--store": named}
        with suppress(OSError):  # the terminal may be gone
            click.echo(f"Continue with: {continuing(left.conversation, options)}", err=True)
    seen = tty is not None and prompt is None  # by the user, who continued or left
    sys.exit(left.code or int(left.failed and not seen))


def _screen_tty() -> Tty | None:
    """Return the terminal, if stdin and stdout are one and it can be drawn on."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    return open_tty()


# At a terminal


async def _terminal(wanted: _Wanted, tty: Tty) -> _Left:
    from keephold.cli.chat_session import ChatSession

    loop = asyncio.get_running_loop()
    with ExitStack() as terminals:
        terminals.callback(tty.close)
        prompter = _prompter(wanted, terminals)
        session = ChatSession(tty, restore=terminals.close)
        ask = None if prompter is None else _while_there(_on(session, prompter), session.hang_up)
        stop = Signals(terminals.close)
        with ExitStack() as last:
            async with wanted.runtime(ask) as runtime:
                conversation = await wanted.open(runtime)
                stop.listen(session.hang_up, "SIGTERM", "SIGHUP")
                loop.add_signal_handler(signal.SIGINT, session.interrupt)
                loop.add_signal_handler(signal.SIGWINCH, session.screen.changed)
                last.enter_context(session.screen)  # shows handles that stop while the runtime closes
                last.enter_context(_Logged(session.screen))
                last.callback(session.close)
                words = (one_line(conversation.assistant.name), f"conversation {one_line(conversation.id)}", "/help")
                session.screen.show(Piece.line(" · ".join(words), "dim"))
                past = await conversation.lines()
                for piece in last_exchange(past):
                    session.screen.show(piece)
                if not past and wanted.conversation is not None:
                    session.screen.show(Piece.line(_NEW.format(one_line(conversation.id)), "dim", whole=True))
                await session.run(runtime, conversation, wanted.prompt)
    return _Left(conversation.id, session.talked, session.failed, stop.code)


def _prompter(wanted: _Wanted, terminals: ExitStack) -> TerminalPrompter | None:
    """Return a prompter, whose terminal is restored with these."""
    prompter = None if wanted.detached else open_prompter()
    if prompter is not None:
        terminals.callback(prompter.close)
    return prompter


def _on(session: "ChatSession", prompter: TerminalPrompter) -> Prompter:
    """Return a prompter that borrows the terminal from the screen, with the line that the user is typing."""

    async def ask(prompt: Prompt) -> Decision:
        async with session.screen.lent():
            return await prompter(prompt, session.typing)

    return ask


def _while_there(prompter: Prompter, leave: Callable[[], None]) -> Prompter:
    """Return a prompter that leaves when its terminal is gone. The prompt is asked again when the turn is resumed."""

    async def ask(prompt: Prompt) -> Decision:
        said = await prompter(prompt)
        if isinstance(said, Dismissed) and said.reason is not None:
            leave()
            await asyncio.Event().wait()  # withdrawn when the runtime closes
        return said

    return ask


class _Logged(logging.Handler):
    """Shows log records as lines of the screen while entered."""

    def __init__(self, screen: "ChatScreen") -> None:
        super().__init__(logging.WARNING)
        self._screen = screen
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        logging.getLogger().addHandler(self)

    def __exit__(self, *raised: object) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        piece = Piece.line(f"{record.name}: {one_line(record.getMessage(), 300)}", "yellow", whole=True)
        self._loop.call_soon_threadsafe(self._screen.show, piece)


# Without one


async def _plain(wanted: _Wanted) -> _Left:
    from keephold.cli.chat_plain import InputLines, PlainChat

    chat = PlainChat(as_json=wanted.as_json)
    lines = InputLines(open_stdin(), person=sys.stdin.isatty())
    with ExitStack() as terminals:
        prompter = _prompter(wanted, terminals)
        stop = Signals(terminals.close)
        ask = None if prompter is None else _while_there(lines.prompting(prompter), chat.leave)
        async with wanted.runtime(ask) as runtime:
            conversation = await wanted.open(runtime)
            stop.listen(chat.stop, "SIGINT")
            stop.listen(chat.leave, "SIGTERM", "SIGHUP")
            new = not await conversation.lines()
            if new and wanted.conversation is not None:
                click.echo(_NEW.format(one_line(conversation.id)), err=True)
            chat.begin(conversation.id, new=new)
            await chat.run(runtime, conversation, aiter(lines) if wanted.prompt is None else lines.after(wanted.prompt))
    return _Left(conversation.id, chat.talked, chat.failed, stop.code)
