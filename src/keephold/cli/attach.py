"""`keephold attach`: connect the user's terminal to that of a handle, in any process, until the user detaches or the
program ends."""

import asyncio
import signal

import click

from keephold.cli.parameters import conversation_option
from keephold.cli.printing import one_line
from keephold.cli.raw_terminal import DetachKey, RawTerminal, over
from keephold.cli.store import Where, ask, where_options
from keephold.control.base import Controls
from keephold.handles.handle import HandleInfo
from keephold.handles.state import Failure
from keephold.tools.base import Screen
from keephold.turn import attach_protocol as frames

_QUIET_SECS = 0.3
"""After this time without output, the program is taken to have finished drawing."""


def _key(context: click.Context, parameter: click.Parameter, value: str) -> DetachKey:
    return DetachKey.parse(value)


@click.command()
@click.argument("ID")
@click.option("--read-only", is_flag=True, help="Watch only; send nothing to the program.")
@click.option("--detach-key", metavar="KEY", default="C-]", callback=_key, help="Detach with this key. Default: C-].")
@conversation_option
@where_options
@click.pass_context
def attach(
    context: click.Context, id: str, read_only: bool, detach_key: DetachKey, conversation: str | None, where: Where
) -> None:
    """Take over the terminal of the handle of an ID, or a uid. Ctrl-] detaches, and the program keeps running."""
    terminal = RawTerminal()
    name, ended, stopped_by = ask(
        where, lambda controls: _attach(controls, terminal, id, conversation, detach_key, read_only=read_only)
    )
    if ended is not None:
        click.echo(_how(ended), err=True)
        context.exit(int(isinstance(ended.outcome, Failure)))
    click.echo(f"detached from {one_line(name)}, which keeps running", err=True)
    context.exit(128 + stopped_by if stopped_by else 0)


async def _attach(
    controls: Controls, terminal: RawTerminal, id: str, conversation: str | None, key: DetachKey, *, read_only: bool
) -> tuple[str, HandleInfo | None, int]:
    """Return the handle's id, its end if it has stopped, and the number of the signal that ended this, if one did."""
    rows, cols = terminal.size()
    (fact,) = await controls.find((id,), conversation)
    watching = frames.Want(uid=fact["uid"], want="follow", screen=True)
    driving = frames.Want(uid=fact["uid"], want="attach", rows=rows, cols=cols)
    async with controls.talk(fact, watching if read_only else driving) as talk:
        first = await talk.receive()  # a refusal must come before the terminal changes
        session = _AttachSession(terminal, talk, key, read_only=read_only)
        return fact["id"], *await session.run(first)


class _AttachSession:
    def __init__(self, terminal: RawTerminal, talk: frames.Talk, key: DetachKey, *, read_only: bool) -> None:
        self._terminal = terminal
        self._talk = talk
        self._key = key
        self._read_only = read_only
        self._hint = f" {'watching' if read_only else 'attached'}; {key.name} detaches "
        self._hint_again = b""
        self._timer: asyncio.TimerHandle | None = None
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self, first: frames.Frame) -> tuple[HandleInfo | None, int]:
        loop, terminal = asyncio.get_running_loop(), self._terminal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave, number)
        if not self._read_only:
            size = terminal.size
            loop.add_signal_handler(signal.SIGWINCH, lambda: self._talk.send(frames.RESIZE, frames.Size(*size())))
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
                self._hint_again = b""
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)

    async def _show(self, received: frames.Frame) -> HandleInfo:
        while True:
            kind, payload = received
            match payload:
                case Screen():
                    self._terminal.write(frames.redraw(payload))
                    self._show_hint(payload)
                case bytes():
                    self._terminal.write(payload)
                    self._repeat_hint_later()
                case frames.HandleStatus() if kind == frames.END:
                    return payload.handle
            received = await self._talk.receive()

    def _show_hint(self, screen: Screen) -> None:
        """Show once how to detach. A full-screen program draws over it when its size changes: then show it again."""
        if self._hint:
            drawn = over(screen, self._hint)
            self._terminal.write(drawn)
            self._hint, self._hint_again = "", drawn if screen.alternate else b""
            self._repeat_hint_later()

    def _repeat_hint_later(self) -> None:
        if self._hint_again:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECS, self._repeat_hint)

    def _repeat_hint(self) -> None:
        self._terminal.write(self._hint_again)
        self._hint_again = b""

    def _typed(self) -> None:
        typed = self._terminal.read()
        before = self._key.before(typed)
        if not self._read_only:
            self._talk.send(frames.INPUT, typed if before is None else before)
        if before is not None or not typed:
            self._leave(0)

    def _leave(self, number: int) -> None:
        if not self._left.done():
            self._left.set_result(number)


def _how(ended: HandleInfo) -> str:
    said = f"{one_line(ended.id)}: "
    if isinstance(ended.outcome, Failure):
        return said + one_line(ended.outcome.message)
    return f"{said}ok" if ended.exit_code is None else f"{said}ended with exit code {ended.exit_code}"
