"""Frames over HTTP, for `logs -f`, `send` and `attach` with `--server` (`turn/attach_protocol.py`).

`POST /api/handles/{uid}/talk` takes a `Want` without the uid and answers with frames from the handle's process, this
one or another, or from the store. The client posts its own frames to `/api/talks/{talk}`; `talk` is the header
`Keephold-Talk` of a response that lasts. When the client disconnects, its side of the talk ends and it stops driving
the terminal. A response that ends before its last frame, in good order, comes from a server that was replaced: the
client asks the new one.
"""

import secrets
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from keephold.control.remote_talk import TALK
from keephold.control.stored_output import talking
from keephold.errors import KeepholdError
from keephold.serve.operations import disconnected, read_body, refusal, while_there
from keephold.store.base import Record
from keephold.turn import attach_protocol as frames

if TYPE_CHECKING:
    from keephold.control.control import Control
    from keephold.runtime import Runtime

_LONGEST = 1 << 20
"""Bytes of a request; enough for a paste."""


def routes(control: "Control") -> list[BaseRoute]:
    """Return the routes; `Door` checks who may use them."""
    talks: dict[str, frames.Talk] = {}

    async def talk(request: Request) -> Response:
        try:
            record, want = await _wanted(control.runtime, request)
        except KeepholdError as error:
            return refusal(error)
        return _Talking(control.runtime, record, want, talks)

    async def say(request: Request) -> Response:
        try:
            body = await read_body(request, _LONGEST)
            found = talks.get(request.path_params["talk"])  # after the body has arrived: it may be over since
            if found is None:
                raise KeepholdError("that talk is over", code="handle_not_found")
            _pass_on(found, body)
        except KeepholdError as error:
            return refusal(error)
        return Response(status_code=204)

    return [
        Route("/api/handles/{uid}/talk", talk, methods=["POST"]),
        Route("/api/talks/{talk}", say, methods=["POST"]),
    ]


async def _wanted(runtime: "Runtime", request: Request) -> tuple[Record, frames.Want]:
    uid = request.path_params["uid"]
    record = await runtime.registry.store.handle(uid)
    if record is None:
        raise KeepholdError(f"Handle `{uid}` not found", code="handle_not_found")
    body = await read_body(request, _LONGEST)
    try:
        given = msgspec.json.decode(body, type=dict[str, object])
        return record, msgspec.convert({**given, "uid": uid}, frames.Want)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise KeepholdError(f"the body does not say what is wanted: {error}", code="invalid_arguments") from None


def _pass_on(talk: frames.Talk, body: bytes) -> None:
    """Forward a client's frames. Raises `KeepholdError`, and forwards nothing, unless all are whole frames that a
    client may send."""
    left, sent = bytearray(body), list[tuple[frames.Kind, bytes | frames.Size]]()
    while left:
        match frames.take(left):
            case frames.INPUT, data:
                sent.append((frames.INPUT, data))
            case frames.RESIZE, data:
                sent.append((frames.RESIZE, _size(data)))
            case _:
                raise KeepholdError("the body is not made of frames of kind `i` and `r`", code="invalid_arguments")
    for each in sent:
        talk.send(*each)


def _size(payload: bytes) -> frames.Size:
    try:
        return msgspec.json.decode(payload, type=frames.Size)
    except msgspec.MsgspecError as error:
        raise KeepholdError(f'a size is {{"rows": 24, "cols": 80}}: {error}', code="invalid_arguments") from None


class _Talking(Response):
    """A response that lasts as long as the talk. It watches for a disconnect: a terminal may be silent for hours, and
    must be handed back at once."""

    def __init__(self, runtime: "Runtime", record: Record, want: frames.Want, talks: dict[str, frames.Talk]) -> None:
        super().__init__()
        self._runtime = runtime
        self._record = record
        self._want = want
        self._talks = talks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_there(self._forward(scope, receive, send), disconnected(receive))

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._begun, runtime = False, self._runtime
        try:
            async with talking(runtime.registry.store, self._record, self._want, runtime.relay) as talk:
                await self._pass_frames(talk, send)
        except KeepholdError as error:
            if self._begun:
                refused = frames.Refused(error.message, error.code)
                await send(_part(frames.frame(frames.ERROR, refused), more=False))
            else:
                await refusal(error)(scope, receive, send)
        except OSError:  # the client has left
            pass

    async def _pass_frames(self, talk: frames.Talk, send: Send) -> None:
        id = secrets.token_urlsafe(16)
        try:
            async for kind, payload in frames.all_frames(talk):
                if not self._begun:  # an immediate refusal becomes an error status
                    self._begun, self._talks[id] = True, talk
                    await send({"type": "http.response.start", "status": 200, "headers": _headers(id, self._want)})
                await send(_part(frames.frame(kind, payload), more=kind not in frames.LAST))
        finally:
            self._talks.pop(id, None)  # before the connection ends: from now on the client's frames are refused


def _headers(id: str, want: frames.Want) -> list[tuple[bytes, bytes]]:
    lasts = want.want in ("follow", "attach")
    return [
        (b"content-type", b"application/octet-stream"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *([(TALK.lower().encode(), id.encode())] if lasts else ()),
    ]


def _part(body: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}
