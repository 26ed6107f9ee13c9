"""Terminals in the browser: a live screen, and a user who takes it over.

`GET /screens/{uid}` is a stream of server-sent events: `hello` once, with the id of the stream, then `screen` when the
screen has changed, at most 20 times a second, and `end`. A terminal without viewers costs nothing.

`POST …/drive` takes the terminal over, until the stream that it names ends. The client numbers its input
(`POST …/type`); the server takes it in that order, and nothing twice.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from keephold.errors import KeepholdError, ToolError
from keephold.serve.dashboard.painting import screen_html
from keephold.serve.operations import read_body, refusal
from keephold.serve.sse import EventStream, event
from keephold.serve.watched_terminal import LocalTerminal, RemoteTerminal, Shown, Watched, wants_marked_pastes
from keephold.tools.terminal.emulator import Emulator
from keephold.tools.terminal.keys import as_bytes
from keephold.turn.attach_protocol import Size
from keephold.turn.owner_connection import running

if TYPE_CHECKING:
    from keephold.runtime import Runtime

PAUSE = 0.05
"""Seconds between two screens."""
_LONGEST = 1 << 20
"""Bytes of a request to type, enough for a paste."""


class Drive(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a take-over."""

    stream: str
    """The id of the stream that shows the terminal to the driver."""
    rows: int = 0
    cols: int = 0


class HandBack(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a hand-back."""

    driver: str


class Type(HandBack):
    """The body of typed input: one of `data`, `key`, `paste`."""

    seq: int
    data: str | None = None
    key: str | None = None
    paste: str | None = None


class Resize(HandBack):
    """The body of a resize."""

    rows: int
    cols: int


class _Driver:
    """A user who drives a terminal from a browser."""

    def __init__(self, stream: str) -> None:
        self.id = secrets.token_urlsafe(16)
        self.stream = stream
        self.typed = 0
        """The number of the last input."""


class _View:
    """A terminal with its viewers."""

    def __init__(self, watched: Watched, ended: Callable[[], None]) -> None:
        self.watched = watched
        self.changed: dict[str, asyncio.Event] = {}
        """By stream id: set when its screen has changed."""
        self.driver: _Driver | None = None
        self.taken = 0
        """How often it was taken over: a driver can tell screens from before its takeover by this."""
        self.over = False
        self.why: str | None = None
        self._ended = ended
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            async with aclosing(self.watched.follow()) as changes:  # type: ignore[type-var]
                async for _ in changes:
                    self.notify()
        except KeepholdError as error:
            self.why = error.message
        finally:
            self.over = True
            await self.hand_back()
            self.notify()
            self._ended()

    def fail(self, error: KeepholdError) -> None:
        """End the view: what its driver typed may be lost."""
        if not self.over:
            self.why = error.message
            self._task.cancel()

    def notify(self) -> None:
        for changed in self.changed.values():
            changed.set()

    async def hand_back(self) -> None:
        self.driver = None
        await self.watched.hand_back()
        self.notify()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.watched.close()


class Screens:
    """The terminals of a runtime, for browsers."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._views: dict[str, _View] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/screens/{uid}", self._stream, methods=["GET"]),
            Route("/screens/{uid}/drive", self._answer(Drive, self._drive), methods=["POST"]),
            Route("/screens/{uid}/type", self._answer(Type, self._type), methods=["POST"]),
            Route("/screens/{uid}/resize", self._answer(Resize, self._resize), methods=["POST"]),
            Route("/screens/{uid}/back", self._answer(HandBack, self._back), methods=["POST"]),
        ]

    async def close(self) -> None:
        """Hand every terminal back and end every stream."""
        for view in tuple(self._views.values()):
            await view.close()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def now(self, uid: str) -> dict[str, Any] | None:
        """Return the current screen of a handle for a page; None if this process does not run it."""
        try:
            handle = self._runtime.registry.loaded(uid)
            return None if handle is None else as_json(LocalTerminal(handle).shown(), handle.driver)
        except KeepholdError:
            return None

    async def _watched(self, uid: str) -> Watched:
        registry = self._runtime.registry
        handle = registry.loaded(uid)
        if handle is not None and handle.run is not None:
            return LocalTerminal(handle)
        record = await registry.store.handle(uid)
        if record is None:
            raise ToolError(f"there is no handle `{uid}`", code="handle_not_found")
        to = running(registry.store, record)
        if to is None:
            raise ToolError(f"handle `{record.id}` does not run", code="not_running")
        return RemoteTerminal(to, self._runtime.relay)

    async def _view(self, uid: str) -> _View:
        view = self._views.get(uid)
        if view is None:
            watched = await self._watched(uid)
            view = self._views.get(uid)  # another viewer may have connected meanwhile
            if view is None:
                view = self._views[uid] = _View(watched, lambda: self._left(uid))
            else:
                watched.close()
        return view

    def _left(self, uid: str) -> None:
        """Release the terminal if its last viewer has left or the handle has stopped."""
        view = self._views.get(uid)
        if view is not None and not view.changed:
            del self._views[uid]
            task = asyncio.create_task(view.close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    # Viewing

    async def _stream(self, request: Request) -> Response:
        uid = request.path_params["uid"]
        try:
            if uid not in self._views:
                (await self._watched(uid)).close()
        except KeepholdError as error:
            return refusal(error)
        return EventStream(self._events(uid))

    async def _events(self, uid: str) -> AsyncGenerator[bytes, None]:
        try:
            view = await self._view(uid)  # here, because a client may leave before the first event
        except KeepholdError as error:
            yield event("end", {"why": error.message})
            return
        id, changed = secrets.token_urlsafe(16), asyncio.Event()
        changed.set()
        view.changed[id] = changed
        try:
            yield event("hello", {"stream": id})
            last: dict[str, Any] | None = None
            while True:
                await changed.wait()
                changed.clear()
                over = view.over
                if not over:
                    now = as_json(view.watched.shown(), view.watched.driver)
                    now |= {"mine": view.driver is not None and view.driver.stream == id, "taken": view.taken}
                    if now != last:
                        last = now
                        yield event("screen", now)
                if over:
                    yield event("end", {"why": view.why})
                    return
                await asyncio.sleep(PAUSE)
        finally:
            del view.changed[id]
            if view.driver is not None and view.driver.stream == id:
                await view.hand_back()
            self._left(uid)

    # Driving

    def _answer(self, kind: type[Any], act: Callable[[str, Any], Any]) -> Callable[[Request], Any]:
        """Return the view that reads a body of that kind, and acts."""

        async def answer(request: Request) -> Response:
            try:
                body = await read_body(request, _LONGEST)
                return JSONResponse(await act(request.path_params["uid"], msgspec.json.decode(body, type=kind)))
            except msgspec.DecodeError as error:
                return refusal(ToolError(f"the request cannot be read: {error}", code="invalid_arguments"))
            except KeepholdError as error:
                return refusal(error)

        return answer

    async def _drive(self, uid: str, want: Drive) -> dict[str, Any]:
        view = await self._view(uid)
        try:
            if want.stream not in view.changed:
                raise ToolError("there is no such stream of this terminal; open it first", code="invalid_arguments")
            await view.watched.drive(Size(want.rows, want.cols), view.fail)
            if view.over or want.stream not in view.changed:  # another process took a while to respond
                await view.watched.hand_back()
                raise ToolError("the terminal has stopped, or its page was left; open it again", code="not_running")
        except KeepholdError:
            self._left(uid)
            raise
        driver = view.driver = _Driver(want.stream)
        view.taken += 1
        view.notify()
        return {"driver": driver.id, "taken": view.taken}

    async def _type(self, uid: str, typed: Type) -> dict[str, Any]:
        view, driver = self._driven(uid, typed.driver)
        if typed.seq <= driver.typed:  # sent again because its response was lost
            return {"seq": driver.typed}
        if typed.seq != driver.typed + 1:
            message = f"number {typed.seq} does not follow {driver.typed}: what is typed is taken in order"
            raise ToolError(message, code="invalid_arguments")
        data = _typed(typed, view.watched.emulator)
        driver.typed = typed.seq
        view.watched.type(data)
        return {"seq": driver.typed}

    async def _resize(self, uid: str, size: Resize) -> dict[str, Any]:
        view, _ = self._driven(uid, size.driver)
        view.watched.resize(Size(size.rows, size.cols))
        view.notify()
        return {}

    async def _back(self, uid: str, asked: HandBack) -> dict[str, Any]:
        view, _ = self._driven(uid, asked.driver)
        await view.hand_back()
        return {}

    def _driven(self, uid: str, driver: str) -> tuple[_View, _Driver]:
        view = self._views.get(uid)
        if view is None or view.driver is None or not secrets.compare_digest(view.driver.id.encode(), driver.encode()):
            raise ToolError("you do not drive this terminal any more; take it over first", code="driven_by_person")
        return view, view.driver


def as_json(shown: Shown, driver: str | None) -> dict[str, Any]:
    """Return a screen as the stream's JSON."""
    screen = shown.screen
    return {
        "html": screen_html(shown.rows, screen.cursor if shown.cursor else None),
        "rows": screen.rows,
        "cols": screen.cols,
        "cursor": list(screen.cursor),
        "title": screen.title,
        "driver": driver,
        "emulator": screen.emulator,
    }


def _typed(typed: Type, emulator: Emulator | None) -> bytes:
    """Return the bytes that a terminal sends for it."""
    match typed:
        case Type(data=str(data), key=None, paste=None):
            return data.encode(errors="replace")
        case Type(data=None, key=str(key), paste=None):
            return as_bytes([key], application=emulator is not None and emulator.application_keys)
        case Type(data=None, key=None, paste=str(text)):
            return _pasted(text, bracketed=emulator is not None and wants_marked_pastes(emulator))
    raise ToolError("give one of `data`, `key` and `paste`", code="invalid_arguments")


def _pasted(text: str, *, bracketed: bool) -> bytes:
    """Remove control characters from a paste, which could end it or press keys."""
    plain = "".join(each for each in text.replace("\r\n", "\n") if each in "\n\t" or each.isprintable())
    data = plain.replace("\n", "\r").encode(errors="replace")
    return b"\x1b[200~" + data + b"\x1b[201~" if bracketed else data
