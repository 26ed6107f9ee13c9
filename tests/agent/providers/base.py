"""What the servers have in common: who may ask, the script, the recording of requests, streams that break or hang.

A `Wire` is one provider's format: how a request is read, what of it is refused and in which words, how a reply is
written. `Provider` is a server that speaks it. Each request is recorded in `requests`, also one that was refused.
"""

import asyncio
import json
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, ClassVar, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from tests.agent.providers.neutral import Asked
from tests.agent.providers.script import Break, Fail, Hang, Overrun, Reply, Script, Turn
from tests.patience import PATIENCE

KEY = "sk-for-tests"


class Refusal(Exception):
    """The provider does not take the request; in its words."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


class Cut(Exception):
    """Ends a response in its middle: the connection is closed without the end that HTTP wants."""


class Event(NamedTuple):
    """One event of a stream."""

    data: Any
    name: str | None = None

    def encoded(self) -> bytes:
        data = self.data if isinstance(self.data, str) else json.dumps(self.data)
        return (f"event: {self.name}\n" if self.name else "").encode() + f"data: {data}\n\n".encode()


class Wire(ABC):
    """A provider's format."""

    format: ClassVar[str]
    path: ClassVar[str]
    models: ClassVar[tuple[str, ...]]
    """Those that the provider has; the first is the one that tests use."""
    prefix: ClassVar[str]
    """Under which path of the server its SDK is told to look."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def number(self, prefix: str) -> str:
        """An id that was not given out before."""
        return f"{prefix}{next(self._numbers):024d}"

    def call_id(self, reply: Reply, index: int, prefix: str) -> str:
        return reply.ids[index] if index < len(reply.ids) else self.number(prefix)

    @abstractmethod
    def authorise(self, headers: Mapping[str, str]) -> None:
        """Raise the refusal of a request without the right key."""

    @abstractmethod
    def address(self, request: Request, body: dict[str, Any]) -> tuple[str, bool]:
        """Which model is asked, and whether the answer is to be streamed."""

    @abstractmethod
    def unknown(self, model: str) -> Refusal:
        """The refusal of a model that the provider does not have."""

    @abstractmethod
    def check(self, body: dict[str, Any]) -> None:
        """Raise the refusal of a request that the provider would not take."""

    @abstractmethod
    def read(self, asked: Asked) -> None:
        """Fill in what the body says."""

    @abstractmethod
    def whole(self, reply: Reply, asked: Asked) -> dict[str, Any]:
        """The reply as one body."""

    @abstractmethod
    def events(self, reply: Reply, asked: Asked) -> Iterator[Event]:
        """The reply as a stream."""

    @abstractmethod
    def error(self, refusal: Refusal, retry_after: float | None = None) -> dict[str, Any]:
        """The body of an error."""

    @abstractmethod
    def failure(self, status: int) -> str:
        """What the provider says with this status."""


class Provider:
    """A server of one format that follows a script."""

    def __init__(self, wire: Wire, script: Script, record: Callable[[Asked], None] | None = None) -> None:
        self.wire = wire
        self.script = script
        self.requests: list[Asked] = []
        self.overruns: list[str] = []
        self.malformed: list[str] = []
        """Why bodies could not be read."""
        self.port = 0
        self._record = record
        self._closing = asyncio.Event()
        self.app = Starlette(routes=[Route(wire.path, self._post, methods=["POST"])])

    @property
    def url(self) -> str:
        """What an SDK is given as its base URL."""
        return f"http://127.0.0.1:{self.port}{self.wire.prefix}"

    @property
    def accepted(self) -> list[Asked]:
        """Requests that were not refused."""
        return [asked for asked in self.requests if asked.refused is None]

    @property
    def refusals(self) -> list[str]:
        return [asked.refused for asked in self.requests if asked.refused is not None]

    def close(self) -> None:
        """End the streams that hang."""
        self._closing.set()

    async def _post(self, request: Request) -> Response:
        try:
            body = strict_json(await request.body())
        except ValueError as error:
            self.malformed.append(str(error))
            return JSONResponse(self.wire.error(Refusal(400, f"The body of the request is not JSON: {error}")), 400)
        model, stream = self.wire.address(request, body)
        asked = Asked(self.wire.format, model, stream, body, dict(request.headers))
        self.requests.append(asked)
        try:
            self._admit(asked)
            turn = await self.script.next(asked)
        except Refusal as refusal:
            return self._refuse(asked, refusal)
        except Overrun as overrun:
            self.overruns.append(str(overrun))
            return self._refuse(asked, Refusal(400, str(overrun)))
        finally:
            if self._record is not None:
                self._record(asked)
        return self._respond(turn, asked, request)

    def _admit(self, asked: Asked) -> None:
        self.wire.authorise(asked.headers)
        if asked.model not in self.wire.models:
            raise self.wire.unknown(asked.model)
        self.wire.check(asked.body)
        self.wire.read(asked)

    def _refuse(self, asked: Asked, refusal: Refusal, retry_after: float | None = None) -> Response:
        asked.refused = refusal.message
        headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
        return JSONResponse(self.wire.error(refusal, retry_after), refusal.status, headers)

    def _respond(self, turn: Turn, asked: Asked, request: Request) -> Response:
        if isinstance(turn, Fail):
            message = turn.message or self.wire.failure(turn.status)
            return self._refuse(asked, Refusal(turn.status, message), turn.retry_after)
        cut = isinstance(turn, Break | Hang)
        reply = (turn if isinstance(turn, Reply) else turn.reply).to(asked)
        if asked.stream:
            chunks = [event.encoded() for event in self.wire.events(reply, asked)]
            sent = self._sent(chunks[: turn.after] if isinstance(turn, Break | Hang) else chunks, turn, asked, request)
            return self._streaming(asked, sent, {}, "text/event-stream")
        body = json.dumps(self.wire.whole(reply, asked)).encode()
        sent = self._sent([body[: len(body) // 2]] if cut else [body], turn, asked, request)
        return self._streaming(asked, sent, {"content-length": str(len(body))}, "application/json")

    def _streaming(self, asked: Asked, sent: AsyncIterator[bytes], headers: dict[str, str], kind: str) -> "Streaming":
        response = Streaming(sent, 200, headers, kind)
        response.asked = asked
        return response

    async def _sent(self, chunks: list[bytes], turn: Turn, asked: Asked, request: Request) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
            await asyncio.sleep(0)  # a piece is a write of its own
        if isinstance(turn, Hang) and await self._gone(request):
            return
        if isinstance(turn, Break | Hang):
            raise Cut
        asked.answered = True

    async def _gone(self, request: Request) -> bool:
        """Wait; whether it is the client that goes first, and not the server."""
        gone = asyncio.ensure_future(request.receive())  # the body is read: what comes next is the end
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([gone, closing], return_when=asyncio.FIRST_COMPLETED)
            return gone.done()
        finally:
            gone.cancel()
            closing.cancel()


class Streaming(StreamingResponse):
    """A response that notices whether its client stayed to the end."""

    asked: Asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        self.asked.abandoned = not self.asked.answered


@asynccontextmanager
async def running(provider: Provider) -> AsyncIterator[Provider]:
    """Serve in this loop, on a free port of this machine. Requests that the script had no turn for are an error."""
    config = uvicorn.Config(provider.app, log_level="critical", ws="none", lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        provider.port = listening.getsockname()[1]
        web = uvicorn.Server(config)
        serving = asyncio.create_task(web.serve(sockets=[listening]))
        async with asyncio.timeout(PATIENCE):
            while not web.started:  # noqa: ASYNC110 (uvicorn has no event for it)
                await asyncio.sleep(0.001)
        try:
            yield provider
        finally:
            provider.close()
            web.should_exit = True
            async with asyncio.timeout(PATIENCE):
                await serving
    assert not provider.overruns, f"requests beyond the script: {provider.overruns}"


def strict_json(body: bytes) -> Any:
    """JSON as it is specified: Python's own takes `NaN` and halves of surrogate pairs. Raises `ValueError`."""
    read = json.loads(body, parse_constant=_no_number)
    if b"\\u" in body:
        json.dumps(read, ensure_ascii=False).encode()
    return read


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def pieces(text: str, size: int) -> Iterator[str]:
    """A text as it is streamed."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Arguments for formats that have no text of them: what is not JSON is lost."""
    if isinstance(arguments, dict):
        return arguments
    try:
        read = json.loads(arguments)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def as_text(arguments: dict[str, Any] | str) -> str:
    """Arguments for formats that have them as text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())
