"""`POST /engines/<uid>`: the channel of a call that runs on an engine, for its worker (`engines/wire.py`).
`POST /engines/`: which calls end.

The authority is a bearer token that only the call's worker can make, by the secret that came with the call. Without it,
no more than a message about ends is read.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keephold.engines.front import FrontEnd
from keephold.engines.wire import ELSEWHERE, ENDS_AT_ONCE, ENDS_BYTES, PATH, REFUSES, Talk
from keephold.errors import KeepholdError
from keephold.serve.operations import read_body

_decode = msgspec.json.Decoder(Talk).decode
_ends = msgspec.json.Decoder(Annotated[dict[str, str], msgspec.Meta(max_length=ENDS_AT_ONCE)]).decode
_STATUS = {"lease_lost": 421, "already_stopped": 410, "limit_exceeded": 413}


class EngineChannel:
    """Answers workers."""

    path = f"{PATH}{{uid}}"
    """Its route in metrics."""

    def __init__(self, front_end: FrontEnd | None) -> None:
        self._front_end = front_end

    async def answer(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Take what a worker says, and answer."""
        if self._front_end is None or request.method != "POST":
            return Response("no call of this server runs on an engine", 404)
        uid = request.url.path[len(PATH) :]
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if uid and kind.lower() != "bearer":
            return Response("a worker sends the authority of its call", 401)

        async def read() -> Talk:
            return _decode(await request.body())

        said: Any
        try:
            if uid:
                said = await self._front_end.talk(uid, bearer, read)
            else:
                said = await self._front_end.ends(_ends(await read_body(request, ENDS_BYTES)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Response(f"this message is invalid: {error}", 400)
        except ClientDisconnect:  # the worker was killed; nobody reads the answer
            return Response(status_code=499)
        except KeepholdError as error:
            said = _STATUS.get(error.code, 503), error.message
        status, why = said if isinstance(said, tuple) else (200, "")
        # Another front end behind the same address may have the call. The rest of a refused body is not read.
        heads = {"connection": "close"} if status in (ELSEWHERE, 403, 413) or (said and not uid) else {}
        if status != 200:
            heads[REFUSES] = "1"
        return Response(why or msgspec.json.encode(said), status, heads, None if why else "application/json")
