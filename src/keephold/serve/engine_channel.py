"""`POST /engines/<uid>`: the channel of a call that runs on an engine, for its worker (`engines/wire.py`).

The authority is a bearer token that only the call's worker can make, by the secret that came with the call.
"""

from collections.abc import Mapping

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keephold.engines.front import FrontEnd
from keephold.engines.wire import PATH, Talk
from keephold.errors import KeepholdError

_decode = msgspec.json.Decoder(Talk).decode


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
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return Response("a worker sends the authority of its call", 401)
        try:
            talk = _decode(await request.body())
            said = await self._front_end.talk(request.url.path[len(PATH) :], bearer, talk)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Response(f"this is not a talk: {error}", 400)
        except ClientDisconnect:  # the worker was killed; nobody reads the answer
            return Response(status_code=499)
        except KeepholdError as error:
            said = {"lease_lost": 421, "already_stopped": 410}.get(error.code, 503), error.message
        if isinstance(said, tuple):
            status, why = said
            return Response(why, status, {"connection": "close"} if status == 421 else None)  # another one may have it
        return Response(msgspec.json.encode(said), media_type="application/json")
