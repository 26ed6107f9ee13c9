"""Sessions of 2025 clients over HTTP that outlive the server, and streams that a client resumes (M3).

A session is in its id: the client's `initialize`, sealed with a key of the store, so every server on the store can take
it up after a restart, and nothing has to be written or deleted. It belongs to the principal that began it.

A stream is resumed with the id of its last event. A session keeps its newest events for that. The answer to a call need
not be among them: its handle has it, also after a restart, and the stream then follows the handle. Calls that only wait
have no handle in the store; the ids of their events hold the whole call, which is made again.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple, cast
from urllib.parse import quote, unquote
from uuid import uuid4

import anyio
import msgspec
from anyio.abc import TaskStatus
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext, authorization_context
from mcp.server.connection import Connection
from mcp.server.request_state import InvalidRequestState
from mcp.server.runner import ServerRunner, serve_connection
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    MCP_SESSION_ID_HEADER,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    InitializeRequestParams,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from keephold.mcp.calls import LEFT, PRINCIPAL, RESUMES
from keephold.mcp.server import Sealed, Server
from keephold.tools.waiting import WAITING

_log = logging.getLogger("keephold.mcp")

LASTS_SECS = 7 * 86_400.0
"""How long after its beginning a session can be taken up again."""
_LONGEST = 4096
"""Bytes of an `initialize` that still fits into a session's id, which is a header of every request."""
_ENDED = 10_000
"""How many sessions that clients have ended are remembered."""
_EVENTS, _EVENT_BYTES = 100, 32_768
"""How many events of a session are kept, and how many bytes of them: 10,000 sessions need 330 MB at most."""
_LISTENS_SECS = 5.0
_WAITS = tuple(name.encode() for name in WAITING)
_INITIALIZE: ContextVar[dict[str, Any] | None] = ContextVar("keephold.initialize", default=None)
"""The parameters of the `initialize` that opens a session."""


class _Session(msgspec.Struct, frozen=True):
    """The content of a session's id."""

    principal: str | None
    begun: float
    nonce: str
    initialize: dict[str, Any]


class _Event(NamedTuple):
    number: int
    stream: str
    message: JSONRPCMessage
    size: int

    @property
    def is_answer(self) -> bool:
        return isinstance(self.message, JSONRPCResponse | JSONRPCError)


class Events(EventStore):
    """The newest events of one session. Their ids are `<number>.<call>.<stream>`; numbers grow over restarts."""

    def __init__(self) -> None:
        self._number = int(time.time() * 1000)
        self._kept: deque[_Event] = deque()
        self._bytes = 0
        self._waits: dict[str, str] = {}
        """By stream: open calls that only wait, as their events' ids have them."""

    def note(self, stream: str, call: str) -> None:
        """Put a call into the ids of its stream's events."""
        self._waits[stream] = call
        if len(self._waits) > _EVENTS:  # requests that were refused have no answer
            del self._waits[next(iter(self._waits))]

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._number += 1
        id = self._id(self._number, stream_id)
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._waits.pop(stream_id, None)
        if message is not None and not _is_left(message):
            self._keep(_Event(self._number, stream_id, message, _size(message)))
        return id

    def _id(self, number: int, stream: str) -> str:
        return f"{number}.{self._waits.get(stream, '')}.{quote(stream, safe='')}"

    def _keep(self, event: _Event) -> None:
        self._kept.append(event)
        self._bytes += event.size
        while len(self._kept) > _EVENTS or self._bytes > _EVENT_BYTES:
            self._bytes -= self._kept.popleft().size

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        found = place_of(last_event_id)
        if found is None:
            return None
        for event in [each for each in self._kept if each.stream == found.stream and each.number > found.number]:
            await send_callback(EventMessage(event.message, self._id(event.number, event.stream)))
        return found.stream

    def has_answer(self, stream: str) -> bool:
        """Return whether the answer of a request's stream is kept."""
        return any(event.stream == stream and event.is_answer for event in self._kept)


class _Place(NamedTuple):
    """The parts of an event's id."""

    number: int
    call: str
    stream: str


def place_of(event_id: str) -> _Place | None:
    """Return the parts of an event's id; None if it is not one of ours."""
    number, _, rest = event_id.partition(".")
    call, point, stream = rest.partition(".")
    return _Place(int(number), call, unquote(stream)) if point and number.isdecimal() and len(number) < 20 else None


def _is_left(message: JSONRPCMessage) -> bool:
    """Return whether this is the answer of a call whose client had left: its handle has the true one."""
    result = message.result if isinstance(message, JSONRPCResponse) else None
    return isinstance(result, dict) and LEFT in (result.get("_meta") or {})


def _size(message: JSONRPCMessage) -> int:
    return _weight(getattr(message, "result", None) or getattr(message, "params", None))


def _weight(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _weight(each) for key, each in value.items())
    return sum(map(_weight, value)) if isinstance(value, list) else 8


class _Transport(StreamableHTTPServerTransport):
    async def _replay_events(self, last_event_id: str, request: Request, send: Send) -> None:
        events, found = cast(Events, self._event_store), place_of(last_event_id)
        following = None
        if found is not None and found.stream in self._request_streams:
            self.close_sse_stream(found.stream)  # the client knows better that this connection is broken
        elif found is not None and found.stream != GET_STREAM_KEY and not events.has_answer(found.stream):
            following = asyncio.create_task(self._follow(found, request))
        try:
            await super()._replay_events(last_event_id, request, send)
        finally:
            if following is not None:
                following.cancel()

    forward: "Forward | None" = None

    async def _handle_post_request(self, scope: Scope, request: Request, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):  # noticed by the SDK, too
            body = await request.body()
            self._note_wait(body)
            if self.forward is not None and self.mcp_session_id is not None and _is_for_others(body):
                await self.forward(self.mcp_session_id, body.decode())
        await super()._handle_post_request(scope, request, receive, send)

    async def deliver(self, body: str, principal: str | None) -> None:
        """Take a message that the client has sent to another server."""
        if self._read_stream_writer is not None:
            # Without a request the message would count as one of the owner's own client.
            beside = self._message_metadata(Request({"type": "http", "headers": [], PRINCIPAL: principal}))
            with contextlib.suppress(ValueError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                # The client learns from the other server what is wrong with it. Or the session has ended.
                await self._read_stream_writer.send(SessionMessage(jsonrpc_message_adapter.validate_json(body), beside))

    def _note_wait(self, body: bytes) -> None:
        """Note a call that only waits, for the ids of its events."""
        if not any(name in body for name in _WAITS) or len(body) > _LONGEST:
            return
        with contextlib.suppress(ValueError, RecursionError):
            match msgspec.json.decode(body):
                case {"method": "tools/call", "id": int() | str() as id, "params": dict(params)}:
                    if params.get("name") in WAITING:
                        wait = msgspec.json.encode({key: params.get(key) for key in ("name", "arguments")})
                        cast(Events, self._event_store).note(str(id), urlsafe_b64encode(wait).decode())

    async def _follow(self, place: _Place, request: Request) -> None:
        """Serve the request of a stream again, once the stream is listened to: by its handle (`Calls.resumed`), or by
        the same call if it only waits."""
        stream, params, scope = place.stream, dict[str, Any](name="-"), dict(request.scope)
        with contextlib.suppress(ValueError, RecursionError):
            match msgspec.json.decode(urlsafe_b64decode(place.call)):
                case {"name": str(name), "arguments": dict() | None as arguments} if name in WAITING:
                    params = {"name": name, "arguments": arguments or {}}
        if params["name"] == "-":
            scope[RESUMES] = True
        until = asyncio.get_running_loop().time() + _LISTENS_SECS
        while stream not in self._request_streams:
            if asyncio.get_running_loop().time() > until:  # the client has left
                return
            await asyncio.sleep(0.005)  # the SDK does not say when
        id = int(stream) if stream.isdecimal() and len(stream) < 16 else stream
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        again = JSONRPCRequest(jsonrpc="2.0", id=id, method="tools/call", params=params)
        resumed = Request(scope, request.receive)
        assert self._read_stream_writer is not None
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the session has ended
            await self._read_stream_writer.send(self._create_session_message(again, resumed, stream, version))


Forward = Callable[[str, str | None], Awaitable[None]]
"""Gives the other servers a message of a session; None: that the session has ended."""
_FOR_OTHERS = ("notifications/cancelled", "resources/subscribe", "resources/unsubscribe", "logging/setLevel")


def _is_for_others(body: bytes) -> bool:
    """Return whether a message concerns a call, which another server may answer, or the whole session."""
    with contextlib.suppress(ValueError, RecursionError):
        match msgspec.json.decode(body):
            case {"method": method}:
                return method in _FOR_OTHERS
            case {"id": _}:
                return True
    return False


class Sessions(StreamableHTTPSessionManager):
    """The SDK's manager, which takes up sessions that it does not know.

    The SDK makes its manager itself, and has no seam for this: an instance of it becomes one of this class."""

    _sealed: Sealed
    _ended: OrderedDict[str, None]
    forward: Forward | None = None

    async def deliver(self, id: str, body: str) -> None:
        """Take a message that a client has sent to another server."""
        transport = self._server_instances.get(id)
        if isinstance(transport, _Transport):
            owner = self._session_owners.get(id)
            await transport.deliver(body, None if owner is None else owner["client_id"])

    async def end(self, id: str) -> None:
        """End a session that a client has ended at another server."""
        self._note_end(id)
        transport = self._server_instances.get(id)
        if isinstance(transport, _Transport):
            await transport.terminate()

    @classmethod
    def serve(cls, server: Server) -> None:
        server.session_manager.__class__ = cls
        manager = cast(Sessions, server.session_manager)
        manager._sealed, manager._ended = server.sealed_sessions, OrderedDict()

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = Request(scope).headers.get(MCP_SESSION_ID_HEADER)
        if id is None:
            try:
                receive = await _opening(scope, receive)
            except ClientDisconnect:
                return
        elif id not in self._server_instances and _digest(id) not in self._ended:
            user = scope.get("user")
            await self._restore(id, authorization_context(user) if isinstance(user, AuthenticatedUser) else None)
        if id is not None and scope["method"] == "DELETE":
            send = self._telling_end(id, send)
        await super()._handle_stateful_request(scope, receive, send)

    def _telling_end(self, id: str, send: Send) -> Send:
        """Note that a session has ended, here and in the other servers, before the client knows it."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                self._note_end(id)
                if self.forward is not None:
                    await self.forward(id, None)
            await send(message)

        return told

    @property
    def ended(self) -> list[str]:
        """The latest sessions that clients have ended, by digest."""
        return list(self._ended)

    def note_ended(self, digests: Iterable[str]) -> None:
        """Know sessions that have ended at other servers."""
        self._ended.update(dict.fromkeys(digests))

    def _note_end(self, id: str) -> None:
        self._ended[_digest(id)] = None
        while len(self._ended) > _ENDED:
            self._ended.popitem(last=False)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        if self.max_sessions is not None and len(self._server_instances) >= self.max_sessions:
            return None
        principal = None if requestor is None else requestor["client_id"]
        return self._admitted(self._new_id(principal), requestor)

    def _admitted(self, id: str, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport:
        transport = _Transport(
            mcp_session_id=id,
            is_json_response_enabled=self.json_response,
            event_store=Events(),
            security_settings=self.security_settings,
            retry_interval=self.retry_interval,
            idle_timeout=self.session_idle_timeout,
        )
        transport.forward = self.forward
        if requestor is not None:
            self._session_owners[id] = requestor
        self._server_instances[id] = transport
        return transport

    def _new_id(self, principal: str | None) -> str:
        begun = _Session(principal, time.time(), secrets.token_hex(8), _INITIALIZE.get() or {})
        content = msgspec.json.encode(begun)
        return self._sealed.seal(content) if begun.initialize and len(content) <= _LONGEST else uuid4().hex

    def _read(self, id: str) -> _Session | None:
        """Return the content of a session's id; None if no server of this store has made it, or it is too old."""
        try:
            session = msgspec.json.decode(self._sealed.unseal(id), type=_Session)
        except (InvalidRequestState, msgspec.DecodeError, ValueError):
            return None
        return session if time.time() - session.begun < LASTS_SECS else None

    async def _restore(self, id: str, requestor: AuthorizationContext | None) -> None:
        """Take up a session that another server has begun, or this one before it was idle."""
        session = self._read(id)
        if session is None or session.principal != (None if requestor is None else requestor["client_id"]):
            return
        try:
            initialized = ServerRunner._negotiate_initialize(session.initialize)
        except ValidationError:
            return
        async with self._session_creation_lock:
            full = self.max_sessions is not None and len(self._server_instances) >= self.max_sessions
            if id not in self._server_instances and not full:
                transport, group = self._admitted(id, requestor), cast(Any, self._task_group)
                await group.start(self._run, id, transport, initialized)

    async def _run(
        self,
        id: str,
        transport: StreamableHTTPServerTransport,
        initialized: tuple[InitializeRequestParams, str],
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        async with transport.connect() as (received, sent):
            dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(
                received, sent, inline_methods=frozenset({"initialize"})
            )
            # A late answer to a request of the server before must not answer a request of this one.
            dispatcher._next_id = secrets.randbits(48)
            connection = Connection.for_loop(dispatcher, session_id=id)
            connection.client_params, connection.protocol_version = initialized
            connection.initialized.set()
            task_status.started()
            try:
                with transport.idle_scope or contextlib.nullcontext():
                    await serve_connection(
                        self.app, dispatcher, connection=connection, lifespan_state=self._lifespan_state
                    )
            except Exception:
                _log.exception("a session that was taken up has crashed")
            finally:
                await self._discard_session(id, transport)


async def _opening(scope: Scope, receive: Receive) -> Receive:
    """Note the `initialize` that a request without a session may be, and return its body again."""
    body = await Request(scope, receive).body() if scope["method"] == "POST" else b""
    with contextlib.suppress(ValueError, RecursionError):
        match msgspec.json.decode(body):
            case {"method": "initialize", "params": dict(params)}:
                _INITIALIZE.set(_kept(params))
    given = False

    async def again() -> Message:
        nonlocal given
        if given or scope["method"] != "POST":
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _digest(id: str) -> str:
    return hashlib.blake2b(id.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _kept(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an `initialize` that the server uses later."""
    info = params.get("clientInfo")
    short: Callable[[str], str] = lambda key: str(info.get(key, ""))[:100] if isinstance(info, dict) else ""  # noqa: E731
    return {
        "protocolVersion": params.get("protocolVersion"),
        "capabilities": params.get("capabilities"),
        "clientInfo": {"name": short("name"), "version": short("version")},
    }
