"""`keephold attach`: a person at the terminal of a handle, whichever process runs it.

What the program prints is shown as it is, and what is typed goes to it, until the person detaches or it ends. Exit code
0 when they detached or it ended well, 1 when it failed or was ended.
"""

import asyncio
import signal

import click
import msgspec

from keephold.cli.parameters import NAME
from keephold.cli.printing import one_line
from keephold.cli.raw_terminal import Key, RawTerminal, over, redraw
from keephold.cli.store import Where, opened, run, where_options
from keephold.control.base import Talk
from keephold.handles.handle import HandleInfo
from keephold.handles.state import Failure
from keephold.tools.base import Screen
from keephold.turn import attach_protocol as frames

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUIET_SECS = 0.3
"""After this time without output a program has drawn what it had to."""


def _key(context: click.Context, parameter: click.Parameter, value: str) -> Key:
    return Key.parse(value)


@click.command()
@click.argument("ID")
@click.option("--read-only", is_flag=True, help="Watch, and leave the driving to others.")
@click.option("--detach-key", metavar="KEY", default="C-]", callback=_key, help="The key that detaches; default: C-].")
@click.option(
    "--conversation", metavar="C", type=NAME, help="The conversation it is in, if several have one of that id."
)
@where_options
@click.pass_context
def attach(
    context: click.Context, id: str, read_only: bool, detach_key: Key, conversation: str | None, where: Where
) -> None:
    """Take over the terminal of the handle of an ID, or a uid. Ctrl-] detaches, and the program goes on."""
    terminal = RawTerminal()
    name, ended, stopped_by = run(_attach(terminal, where, id, conversation, detach_key, read_only=read_only))
    if ended is not None:
        failed = isinstance(ended.outcome, Failure)
        click.echo(_how(ended), err=True)
        context.exit(int(failed))
    click.echo(f"detached from {one_line(name)}, which goes on", err=True)
    context.exit(128 + stopped_by if stopped_by else 0)


async def _attach(
    terminal: RawTerminal, where: Where, id: str, conversation: str | None, key: Key, *, read_only: bool
) -> tuple[str, HandleInfo | None, int]:
    """The handle's id, how it ended, if it did, and the number of the signal that ended this, if one did."""
    rows, cols = terminal.size()
    async with opened(where) as controls:
        (fact,) = await controls.find((id,), conversation)
        watching = frames.Want(uid=fact["uid"], want="follow", screen=True)
        driving = frames.Want(uid=fact["uid"], want="attach", rows=rows, cols=cols)
        async with controls.talk(fact, watching if read_only else driving) as talk:
            first = await talk.receive()  # refused while the terminal is still as it was
            session = _Session(terminal, talk, key, read_only=read_only)
            return fact["id"], *await session.run(first)


class _Session:
    """From the first screen to the last."""

    def __init__(self, terminal: RawTerminal, talk: Talk, key: Key, *, read_only: bool) -> None:
        self._terminal = terminal
        self._talk = talk
        self._key = key
        self._read_only = read_only
        self._hint = f" {'watching' if read_only else 'attached'}; {key.name} detaches "
        self._again = b""
        self._later: asyncio.TimerHandle | None = None
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self, first: tuple[str, bytes]) -> tuple[HandleInfo | None, int]:
        loop, terminal = asyncio.get_running_loop(), self._terminal
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._leave, number)
        if not self._read_only:
            loop.add_signal_handler(signal.SIGWINCH, self._resized)
        with terminal:
            showing = asyncio.create_task(self._show(first))
            loop.add_reader(terminal.input, self._typed)
            try:
                await asyncio.wait((showing, self._left), return_when=asyncio.FIRST_COMPLETED)
                if showing.done():
                    return showing.result(), 0
                self._talk.send(frames.DETACH)
                return None, self._left.result()
            finally:
                loop.remove_reader(terminal.input)
                self._again = b""
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)

    async def _show(self, received: tuple[str, bytes]) -> HandleInfo:
        while True:
            kind, payload = received
            if kind == frames.SCREEN:
                screen = msgspec.json.decode(payload, type=Screen)
                self._terminal.write(redraw(screen))
                self._say_how(screen)
            elif kind == frames.OUTPUT:
                self._terminal.write(payload)
                self._say_later()
            elif kind == frames.END:
                return msgspec.json.decode(payload, type=frames.HandleStatus).handle
            received = await self._talk.receive()

    def _say_how(self, screen: Screen) -> None:
        """Once, how to detach. A full-screen program draws over it when it hears of another size: then once again."""
        if self._hint:
            drawn = over(screen, self._hint)
            self._terminal.write(drawn)
            self._hint, self._again = "", drawn if screen.alternate else b""
            self._say_later()

    def _say_later(self) -> None:
        if self._again:
            if self._later is not None:
                self._later.cancel()
            self._later = asyncio.get_running_loop().call_later(_QUIET_SECS, self._say_again)

    def _say_again(self) -> None:
        self._terminal.write(self._again)
        self._again = b""

    def _typed(self) -> None:
        typed = self._terminal.read()
        before = self._key.before(typed)
        if not self._read_only:
            self._talk.send(frames.INPUT, typed if before is None else before)
        if before is not None or not typed:
            self._leave(0)

    def _resized(self) -> None:
        self._talk.send(frames.RESIZE, frames.Size(*self._terminal.size()))

    def _leave(self, number: int) -> None:
        if not self._left.done():
            self._left.set_result(number)


def _how(ended: HandleInfo) -> str:
    said = f"{one_line(ended.id)}: "
    if isinstance(ended.outcome, Failure):
        return said + one_line(ended.outcome.message)
    return f"{said}ok" if ended.exit_code is None else f"{said}ended with exit code {ended.exit_code}"
