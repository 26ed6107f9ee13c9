"""One terminal with viewers: its screen, and the input of its driver.

It may run in this process (`LocalTerminal`) or in another one on the same store (`RemoteTerminal`, which feeds an
emulator of its own); viewers see no difference. A terminal has at most one driver, in any process.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple, Protocol

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.tools.base import Screen, SupportsScreen
from keephold.tools.terminal.emulator import Emulator, Rows, SupportsCells, open_emulator, plain_rows, rows_of
from keephold.turn import attach_protocol as frames
from keephold.turn.attach_protocol import Size, redraw
from keephold.turn.attached import Driver, HandleFollower, driving, terminal_of
from keephold.turn.owner_connection import OwnerAddress, linked
from keephold.turn.relayed_streams import Polls

PAUSE = 0.05
"""Seconds between two screens of a terminal that nobody drives."""
_HIDDEN = b"\x1b[?25l"
_BRACKETED = b"\x1b[?2004h"
_REPLAYED = 1 << 18
"""Bytes of output that are replayed to find the colours of a screen."""
_FIRST = Size(24, 80)
"""The size of a screen before it is known."""


class Shown(NamedTuple):
    """A terminal's screen at one moment."""

    screen: Screen
    rows: Rows
    cursor: bool
    """Whether the cursor is visible."""


class Watched(Protocol):
    """A terminal with viewers."""

    @property
    def driver(self) -> str | None:
        """`person` if a user drives it."""

    @property
    def emulator(self) -> Emulator | None:
        """Its emulator: the modes in which the program wants keys and pastes. There is one while it is driven."""

    def shown(self) -> Shown: ...

    def follow(self) -> AsyncIterator[None]:
        """Yield after each change until the handle stops. Raises `KeepholdError` if the connection is lost."""

    async def drive(self, size: Size, lost: Callable[[KeepholdError], None]) -> None:
        """Take it over. Raises `KeepholdError` if another user drives it. `lost` is called if typed input may not have
        arrived."""

    def type(self, data: bytes) -> None: ...

    def resize(self, size: Size) -> None: ...

    async def hand_back(self) -> None:
        """Restore its size and release it. A second call does nothing."""

    def close(self) -> None:
        """Release it: no viewer is left."""


def shown_by(terminal: SupportsScreen | Emulator) -> Shown:
    """Return a terminal's screen, with colours if it knows them."""
    screen = terminal.screen()
    painted = terminal.painted() if isinstance(terminal, SupportsCells) else b""
    if not painted:
        return Shown(screen, plain_rows(screen.lines), screen.emulator == "ghostty")
    rows = rows_of(painted.decode("utf-8", "replace"), screen.rows)
    return Shown(screen, rows, _HIDDEN not in painted)


def wants_marked_pastes(emulator: Emulator) -> bool:
    """Return whether the program wants pastes marked."""
    return isinstance(emulator, SupportsCells) and _BRACKETED in emulator.painted()


class LocalTerminal:
    """A terminal of this process."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._live = terminal_of(handle)
        self._driven = contextlib.ExitStack()
        self._driver: Driver | None = None
        self.emulator: Emulator | None = None
        """While a user drives, their terminal answers the program's queries. A browser cannot; this does."""

    @property
    def driver(self) -> str | None:
        return self._handle.driver

    def shown(self) -> Shown:
        return shown_by(self._live)

    async def follow(self) -> AsyncIterator[None]:
        async with contextlib.aclosing(HandleFollower(self._handle, screen=self._live).until_stopped()) as following:
            async for kind, payload in following:
                if self.emulator is not None:
                    self._answer(kind, payload)
                yield
                if self.emulator is None:
                    await asyncio.sleep(PAUSE)  # a client that falls far behind gets the screen instead of all output

    def _answer(self, kind: str, payload: object) -> None:
        assert self.emulator is not None
        if isinstance(payload, bytes):
            self.emulator.feed(payload)
        elif kind == frames.SCREEN:
            self.emulator.feed(b"\x1bc" + painting_of(self._live))

    async def drive(self, size: Size, lost: Callable[[KeepholdError], None] = lambda _: None) -> None:
        self._driven.enter_context(self._drive(size))

    @contextlib.contextmanager
    def _drive(self, size: Size) -> Iterator[None]:
        with driving(self._handle) as driver:
            self._live = driver.live
            screen = self._live.screen()
            self._driver, self.emulator = driver, open_emulator(screen.rows, screen.cols, self.type)
            try:
                self.emulator.feed(painting_of(self._live))
                self.resize(size)
                yield
            finally:
                self.emulator.close()
                self._driver = self.emulator = None

    def type(self, data: bytes) -> None:
        if self._driver is not None:
            self._driver.type(data)

    def resize(self, size: Size) -> None:
        if self._driver is not None and self.emulator is not None:
            self._driver.resize(size)
            screen = self._live.screen()
            self.emulator.resize(screen.rows, screen.cols)

    async def hand_back(self) -> None:
        self._driven.close()

    def close(self) -> None: ...


class RemoteTerminal:
    """A terminal that another process runs."""

    def __init__(self, to: OwnerAddress, polls: Polls) -> None:
        self._to = to
        self._polls = polls
        self.emulator = open_emulator(_FIRST.rows, _FIRST.cols, self.type)
        self._driven = contextlib.AsyncExitStack()
        self._link: frames.Talk | None = None
        """While its user drives."""
        self._lost: Callable[[KeepholdError], None] = lambda _: None
        self._before = _FIRST
        self._plain: Screen | None = None
        """A screen whose colours are not known."""
        self.driver: str | None = None

    def shown(self) -> Shown:
        return shown_by(self.emulator)

    async def follow(self) -> AsyncIterator[None]:
        want = frames.Want(uid=self._to.uid, want="follow", screen=True)
        async with linked(self._to, want, self._polls) as link:
            async for kind, payload in frames.all_frames(link):
                match payload:
                    case frames.HandleStatus() if kind == frames.STATE:
                        self.driver = payload.handle.driver
                        await self._recolour(payload.offset)
                    case Screen():
                        self._redraw(payload)
                    case bytes():
                        self.emulator.feed(payload)
                if kind != frames.END:
                    yield

    def _redraw(self, screen: Screen) -> None:
        self.emulator.resize(screen.rows, screen.cols)
        self.emulator.feed(redraw(screen))
        self._plain = screen

    async def _recolour(self, total: int) -> None:
        """Replay the output to find the screen's colours, which a frame does not have. If there is too much output, or
        the replay gives another screen, colours come with the next output."""
        shown, self._plain = self._plain, None
        if shown is None or total > _REPLAYED or self._link is not None:
            return
        printed = await self._printed(total)
        again = open_emulator(shown.rows, shown.cols, self.type)
        again.feed(printed)
        now = again.screen()
        if (now.lines, now.cursor, now.alternate) == (shown.lines, shown.cursor, shown.alternate):
            self.emulator, again = again, self.emulator
        again.close()

    async def _printed(self, total: int) -> bytes:
        data = bytearray()
        async with linked(self._to, frames.Want(uid=self._to.uid, want="read"), self._polls) as link:
            async for kind, payload in frames.all_frames(link):
                if isinstance(payload, bytes):
                    data += payload
                if kind == frames.GAP or len(data) >= total:
                    break
        return bytes(data[:total])

    async def drive(self, size: Size, lost: Callable[[KeepholdError], None]) -> None:
        screen = self.emulator.screen()
        want = frames.Want(uid=self._to.uid, want="attach", rows=size.rows, cols=size.cols)
        async with contextlib.AsyncExitStack() as stack:
            link = await stack.enter_async_context(linked(self._to, want, self._polls))
            await link.receive()  # its screen, or a refusal
            stack.push_async_callback(_cancel, asyncio.create_task(_read(link, lost)))
            self._link, self._lost, self._driven = link, lost, stack.pop_all()
        self._before = Size(screen.rows, screen.cols)
        self._fit(size)

    def type(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(frames.INPUT, data)

    def resize(self, size: Size) -> None:
        if self._link is not None:
            self._link.send(frames.RESIZE, size)
            self._fit(size)

    def _fit(self, size: Size) -> None:
        if size.rows > 0 and size.cols > 0:
            self.emulator.resize(size.rows, size.cols)

    async def hand_back(self) -> None:
        if self._link is not None:
            self._link = None
            try:
                await self._driven.aclose()
            except KeepholdError as error:
                self._lost(error)
            self._fit(self._before)

    def close(self) -> None:
        self.emulator.close()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _read(link: frames.Talk, lost: Callable[[KeepholdError], None]) -> None:
    """Read and ignore the driver's frames: the viewer's connection gets the same."""
    try:
        while (await link.receive())[0] != frames.END:
            pass
    except KeepholdError as error:
        if error.code == "input_lost":
            lost(error)


def painting_of(live: SupportsScreen) -> bytes:
    """Return the sequences that paint a terminal's screen, with colours if it knows them."""
    return (live.painted() if isinstance(live, SupportsCells) else b"") or redraw(live.screen())
