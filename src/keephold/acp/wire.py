"""JSON-RPC 2.0 as ACP uses it, and its errors: one message per line, over two file descriptors.

    peer = Peer(read_fd, write_fd, on_request=…, on_notification=…)     # on a running loop
    peer.start()                          # begin to read; no callback is called before
    peer.notify(method, params)           # queued at once: messages leave in the order of these calls
    call = peer.request(method, params)   # queued at once; `await call` gives the result or raises; `call.id`
    peer.respond(id, result)              # answer a request
    peer.respond(id, error=RpcError(…))
    peer.answer(id, coroutine)            # a task whose result or error is the answer
    peer.cancel(id)                       # end such a task: answered with -32800, unless it returns something
    await peer.drain()                    # until the other side has taken nearly all; await this if you write much
    await peer.flush()                    # until it has taken all
    await peer.ended()                    # until nothing more will come; returns the reason
    await peer.close()                    # end tasks of `answer`, fail open requests, stop reading and writing

Guarantees:

- **Order.** `on_notification(method, params)` and `on_request(method, params, id)` are called synchronously, one after
  another, in the order of arrival. They must not block: they start work, and so decide what runs concurrently. The
  callback `answered` of `request` is called in that same order, when the answer is read; an `await` wakes later.
- **Requests are answered.** `on_request` answers by `respond` or `answer`. If it raises `RpcError`, that is the answer;
  `unknown_method(method)` makes the one for an unknown method. Any other exception is logged and answered with -32603.
  Exceptions of `on_notification` are logged.
- **No input ends the connection.** Invalid JSON, an invalid message, a batch or an overlong line is answered with an
  error that has the id of the message if it can be read, else null. Answers without a request are ignored.
- **Cancelling a request** that is awaited sends `$/cancel_request`. A received one is an ordinary notification.
- **The end.** When the other side has closed or died, open requests raise `ConnectionLost` at once. After the end of
  input you can still write. Output after the other side has died is dropped.

Ids are strings, integers or null. The descriptors stay the caller's: they are not closed, and their flags do not
change.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, TypeAlias

import msgspec

from keephold.acp.lines import LineReader, LineWriter
from keephold.errors import KeepholdError
from keephold.text import to_json

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
AUTH_REQUIRED = -32000
RESOURCE_NOT_FOUND = -32002
REQUEST_CANCELLED = -32800

Id: TypeAlias = str | int | None
Params: TypeAlias = dict[str, Any]

_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
OPENING = re.compile(
    rb'\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(?P<id>-?\d{1,18}|"(?:[^"\\]|\\.){0,512}")'
    rb'\s*,\s*"(?P<next>method|result|error)"'
)
"""How most programs begin a message: enough to identify the sender's request if the rest cannot be read."""
PROTOCOL_VERSION = 1
TURN_COMPLETE = "keephold/turnComplete"
"""In `_meta` of capabilities: whether, or how, the end of a turn is signalled."""
BACKGROUND = "keephold/background"
"""In `_meta` of an update, with the value true: the update belongs to no turn."""
LINE_BYTES = 16 * 1024 * 1024
BACKLOG_BYTES = 64 * 1024 * 1024
_log = logging.getLogger(__name__)


class ConnectionLost(KeepholdError):
    """The other side is gone; requests cannot be answered."""

    code = "acp_disconnected"


class RpcError(KeepholdError):
    """An error answer, received or to be sent. `number` is JSON-RPC's code."""

    code = "acp_error"

    def __init__(self, number: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.number = number
        self.data = data

    def __str__(self) -> str:
        told = "" if self.data is None else f": {self.data}"
        return f"{self.message} ({self.number}{told})"


def unknown_method(method: str) -> RpcError:
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})


class Invalid(Exception):
    """The line is JSON but not a message."""

    def __init__(self, what: str, id: Id = None) -> None:
        super().__init__(what)
        self.id = id


def decode(line: bytes) -> Any:
    """Return the JSON of a line. Raises ValueError or RecursionError if it cannot be used."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if not _SURROGATE.search(line):
            raise
        # Half a surrogate pair: JavaScript writes it for a string that was cut inside a character.
        return msgspec.json.decode(to_json(json.loads(line, parse_constant=_no_number)))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def id_of(message: dict[str, Any]) -> Id:
    """Return the id of a message; None if it has none."""
    id = message.get("id")
    if id is None or type(id) is int or isinstance(id, str):
        return id
    raise Invalid("id must be a string, an integer or null")


def error_of(error: Any) -> RpcError:
    if not isinstance(error, dict):
        return RpcError(INTERNAL_ERROR, f"an error of no known form: {error}")
    number = error.get("code")
    words = str(error.get("message") or "no reason given")
    return RpcError(number if type(number) is int else INTERNAL_ERROR, words, error.get("data"))


def invalid_request(why: object) -> RpcError:
    return RpcError(INVALID_REQUEST, f"Invalid request: {why}")


def invalid_params(why: object) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Invalid params: {why}")


def internal(error: Exception) -> RpcError:
    return RpcError(INTERNAL_ERROR, f"Internal error: {type(error).__name__}: {error}")


def table(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def is_background(params: Mapping[str, Any]) -> bool:
    """Return whether the update belongs to no turn; params or update may say so."""
    metas = (table(params.get("_meta")), table(table(params.get("update")).get("_meta")))
    return any(meta.get(BACKGROUND) is True for meta in metas)


class RpcCall(asyncio.Future[Any]):
    """A request that was sent. Awaiting gives its result or raises `RpcError` or `ConnectionLost`."""

    def __init__(self, peer: "Peer", id: int, answered: Callable[["RpcCall"], object] | None) -> None:
        super().__init__()
        self.id = id
        self._peer = peer
        self._answered = answered

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the request up, and notify the other side."""
        if not super().cancel(msg):
            return False
        self._peer._given_up(self)
        return True

    def _settle(self, result: Any = None, error: KeepholdError | None = None) -> None:
        if error is not None:
            self.set_exception(error)
            self.exception()  # the caller need not await it
        else:
            self.set_result(result)
        if self._answered is not None:
            self._answered(self)


class Peer:
    """One end of a connection. The module's docstring is its manual."""

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        *,
        on_request: Callable[[str, Params, Id], None] | None = None,
        on_notification: Callable[[str, Params], None] | None = None,
        limit: int = LINE_BYTES,
        most: int = BACKLOG_BYTES,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        """`limit` is the longest line that is read, `most` how many bytes may wait to be written.

        `on_end` is called at the end of input and must call `lost` once it knows the reason.
        """
        self._on_request, self._on_notification = on_request, on_notification
        self._limit = limit
        self._on_end = on_end
        self._calls: dict[int, RpcCall] = {}
        self._last_id = 0
        self._answers: dict[Id, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[str] = self._loop.create_future()
        self._reader = LineReader(read_fd, limit=limit, line=self._line, too_long=self._too_long, ended=self._ended)
        self._writer = LineWriter(write_fd, most=most, lost=self._unwritable)

    def start(self) -> None:
        self._reader.start()

    # Sending

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def request(
        self, method: str, params: Mapping[str, Any], *, answered: Callable[[RpcCall], object] | None = None
    ) -> RpcCall:
        """Send a request. `answered` is called when its answer is read, or when none can come."""
        self._last_id += 1
        call = RpcCall(self, self._last_id, answered)
        if self._end.done() or not self._writer.open:
            why = self._end.result() if self._end.done() else "the other side reads no more"
            call._settle(error=ConnectionLost(f"{method} was not sent: {why}"))
            return call
        self._calls[call.id] = call
        self._send({"jsonrpc": "2.0", "id": call.id, "method": method, "params": params})
        return call

    def respond(self, id: Id, result: Any = None, *, error: RpcError | None = None) -> None:
        """Answer the request of that id, once."""
        if error is None:
            self._send({"jsonrpc": "2.0", "id": id, "result": result})
            return
        body: dict[str, Any] = {"code": error.number, "message": error.message}
        if error.data is not None:
            body["data"] = error.data
        self._send({"jsonrpc": "2.0", "id": id, "error": body})

    def answer(self, id: Id, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run the coroutine as a task; its result or exception answers the request."""

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._answers.get(id) is task:
                del self._answers[id]
            if task.cancelled():  # before it had begun
                coroutine.close()
                self.respond(id, error=RpcError(REQUEST_CANCELLED, "Request cancelled"))

        task = self._loop.create_task(self._answering(id, coroutine))
        self._answers[id] = task
        self._tasks.add(task)
        task.add_done_callback(done)

    def cancel(self, id: Id) -> bool:
        """Cancel the task that answers the request of that id; return False if there is none."""
        task = self._answers.get(id)
        return task is not None and task.cancel()

    async def _answering(self, id: Id, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            self.respond(id, await coroutine)
        except asyncio.CancelledError:
            self.respond(id, error=RpcError(REQUEST_CANCELLED, "Request cancelled"))
        except RpcError as error:
            self.respond(id, error=error)
        except Exception as error:
            _log.exception("answering a request failed")
            self.respond(id, error=internal(error))

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(to_json(message) + b"\n")

    def _given_up(self, call: RpcCall) -> None:
        if self._calls.pop(call.id, None) is not None:
            self.notify("$/cancel_request", {"requestId": call.id})

    # Waiting

    @property
    def backlog(self) -> int:
        return self._writer.backlog

    async def drain(self) -> None:
        """Return when the other side has taken most of the output, or is gone."""
        await self._writer.drain()

    async def flush(self) -> None:
        """Return when the other side has taken all of the output, or is gone."""
        await self._writer.drain(0)

    async def ended(self) -> str:
        """Return the reason when nothing more will come."""
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """End the tasks that answer, then the connection. A second call does nothing."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reader.stop()
        self._writer.close()
        self.lost("the connection was closed")

    def stop_writing(self) -> None:
        """Drop all output, including the waiting bytes, and fail new requests."""
        self._writer.close()

    def _unwritable(self, why: str) -> None:
        """The other side has stopped reading. Input that it sent before is still read."""
        self._loop.call_soon(self._ended, why)  # not inside a callback: callbacks run one after another

    def _ended(self, why: str) -> None:
        why = why or "the other side has closed the connection"
        if self._on_end is None:
            self.lost(why)
        elif not self._end.done():
            self._on_end(why)

    def lost(self, why: str) -> None:
        """Read the remaining input, then fail open requests for that reason."""
        self._reader.rest()
        self._reader.stop()
        if self._end.done():
            return
        self._end.set_result(why)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call._settle(error=ConnectionLost(f"no answer will come: {why}"))

    # Receiving

    def _line(self, line: bytes) -> None:
        if not line or line.isspace():
            return
        try:
            message = decode(line)
        except (ValueError, RecursionError) as error:
            self._useless(line, RpcError(PARSE_ERROR, f"Parse error: {error}"))
            return
        try:
            self._take(message)
        except Invalid as wrong:
            self.respond(wrong.id, error=invalid_request(wrong))

    def _too_long(self, head: bytes) -> None:
        self._useless(head, invalid_request(f"the line is longer than {self._limit} bytes"))

    def _useless(self, line: bytes, error: RpcError) -> None:
        """Fail the request of an unusable answer; answer any other unusable line with an error."""
        opening = OPENING.match(line)
        if opening is None:
            self.respond(None, error=error)
            return
        id = json.loads(opening["id"])
        if opening["next"] == b"method":
            self.respond(id, error=error)
        elif call := self._calls.pop(id, None):
            call._settle(error=error)

    def _take(self, message: Any) -> None:
        if isinstance(message, list):
            raise Invalid("batches are not part of the protocol; send one message a line")
        if not isinstance(message, dict):
            raise Invalid("a message is an object")
        if "method" in message:
            self._asked(message)
        elif "result" in message or "error" in message:
            self._answered(message)
        else:
            raise Invalid("a message has a method, a result or an error", id_of(message))

    def _asked(self, message: dict[str, Any]) -> None:
        id, method, params = id_of(message), message["method"], message.get("params")
        if message.get("jsonrpc") != "2.0":
            raise Invalid('jsonrpc must be "2.0"', id)
        if not isinstance(method, str):
            raise Invalid("method must be a string", id)
        if params is None:
            params = {}
        if not isinstance(params, dict):
            if "id" in message:
                self.respond(id, error=invalid_params("params must be an object"))
            return
        if "id" in message:
            self._requested(method, params, id)
        elif self._on_notification is not None:
            try:
                self._on_notification(method, params)
            except Exception:
                _log.exception("handling the notification %s failed", method)

    def _requested(self, method: str, params: Params, id: Id) -> None:
        if self._on_request is None:
            self.respond(id, error=unknown_method(method))
            return
        try:
            self._on_request(method, params, id)
        except RpcError as error:
            self.respond(id, error=error)
        except Exception as error:
            _log.exception("handling the request %s failed", method)
            self.respond(id, error=internal(error))

    def _answered(self, message: dict[str, Any]) -> None:
        id = message.get("id")
        # Never answer an answer with an error: two peers would send each other errors forever.
        call = self._calls.pop(id, None) if type(id) is int else None
        if call is None:
            _log.debug("an answer to nothing that is open: %s", message)
        elif message.get("error") is not None:
            call._settle(error=error_of(message["error"]))
        else:
            call._settle(message.get("result"))
