"""The operations of `Control`, through a server's `/api`, for `keephold … --server URL`.

A refusal of the server is the same `KeepholdError` as in this process. An unreachable server and an unknown token are
`KeepholdError`s that say what to do.
"""

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import SplitResult, quote, urlsplit

import httpx2
import msgspec

from keephold.control.base import HandleFilter, WaitGroups
from keephold.control.remote_talk import PATIENT, RemoteTalk
from keephold.control.resolve_handle import choose
from keephold.errors import KeepholdError
from keephold.text import to_json, without_isolates
from keephold.turn import attach_protocol as frames

_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
_AGAIN_SECS = 0.2
"""When a stream that ended without an event is asked for again."""
_PAGE = 200
_WAIT_SECS = 50.0
"""How long one request waits: short enough that proxies and firewalls keep the connection."""
_TAIL_BYTES = 4096


class RemoteControl:
    """The operations, through a server. Use it as an async context manager."""

    def __init__(
        self, url: str, token: str | None = None, *, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        """`transport` is for tests."""
        parts = address(url)
        if parts is None:
            shown = url.partition("?")[0].rpartition("@")[2]  # the omitted parts may be a token or a password (K5)
            raise KeepholdError(
                f"`{shown}` is not the address of a server; one looks like http://127.0.0.1:8420",
                code="invalid_arguments",
            )
        path = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        """The URL for messages: without a password."""
        self.place = f"the server {self.url}"
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._has_token = bool(token)
        # The environment's proxies are for other hosts; they do not reach a loopback address.
        self.client = httpx2.AsyncClient(
            base_url=f"{parts.scheme}://{parts.netloc}{path}", headers=headers, timeout=_TIMEOUT, transport=transport,
            trust_env=not is_local(url),
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()

    async def stream(self, path: str, **asked: Any) -> AsyncIterator[httpx2.ServerSentEvent]:
        """Yield server-sent events as they come."""
        request = self.client.build_request("GET", path, params=_given(asked), timeout=PATIENT)
        response = await self.sent(request)
        try:
            async for event in httpx2.EventSource(response):
                if event.data:  # a frame without data only says when to reconnect
                    yield event
        except httpx2.TransportError as error:
            raise self._lost(error) from error
        finally:
            await response.aclose()

    async def get(self, path: str, **asked: Any) -> Any:
        """Return the answer to a GET; omit parameters without a value."""
        return await self.read(await self.sent(self.client.build_request("GET", path, params=_given(asked))))

    async def post(self, path: str, body: Mapping[str, Any], *, timeout: float | None = 30.0) -> Any:
        """Return the answer to a POST."""
        request = self.client.build_request(
            "POST", path, content=to_json(body), headers={"content-type": "application/json"},
            timeout=httpx2.Timeout(timeout, connect=10.0),
        )  # fmt: skip
        return await self.read(await self.sent(request))

    async def read(self, response: httpx2.Response) -> Any:
        """Return the JSON of a response. Raises `KeepholdError` if it breaks off, or is not ours: another server may
        answer."""
        try:
            return msgspec.json.decode(await response.aread())
        except httpx2.TransportError as error:
            raise self._lost(error) from error
        except msgspec.MsgspecError:
            raise refused(response, None) from None

    async def sent(self, request: httpx2.Request, fine: tuple[int, ...] = ()) -> httpx2.Response:
        """Return the response; its body is not read yet. Raises `KeepholdError` for an error status."""
        try:
            response = await self.client.send(request, stream=True)
            if response.is_success or response.status_code in fine:
                return response
            body = await response.aread()
        except httpx2.TransportError as error:
            raise self._lost(error) from error
        try:
            answered = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            answered = None
        if response.status_code == 401:
            said = "does not know that token" if self._has_token else "needs a token"
            how = "`keephold serve` prints it when it starts: put it in KEEPHOLD_TOKEN or --token-file"
            raise KeepholdError(f"{self.place} {said}; {how}", code="server_refused")
        raise refused(response, answered)

    def _lost(self, error: Exception) -> KeepholdError:
        # httpx quotes a header that it cannot send, and that may be the token (K5).
        said = "" if isinstance(error, httpx2.LocalProtocolError) else str(error)
        why = said or type(error).__name__
        return KeepholdError(
            f"no server answers at {self.url} ({why}); `keephold serve` starts one. Without --server and "
            "KEEPHOLD_SERVER the store is looked into",
            code="server_unreachable",
        )

    # Handles

    async def find(self, ids: Iterable[str], conversation: str | None) -> list[dict[str, Any]]:
        wanted = list(dict.fromkeys(map(without_isolates, ids)))
        found = {id: await self._candidates(id, conversation) for id in wanted}
        for id in wanted:
            if not found[id]:
                await self._check_expired(id, conversation)
        return choose(wanted, found, self.place, lambda fact: (fact["conversation"], fact["state"] != "stopped"))

    async def _candidates(self, id: str, conversation: str | None) -> list[dict[str, Any]]:
        """Return the handle of that uid, or the live ones of that id; if none is live, each conversation's newest."""
        live = await self.handles(conversation=conversation, state="live", search=id, oneshot=True, limit=_PAGE)
        bearing = [fact for fact in live["handles"] if id in (fact["id"], fact["uid"])]
        if bearing:
            return bearing
        newest: dict[str, dict[str, Any]] = {}
        after: str | None = None
        while True:
            page = await self.handles(
                conversation=conversation, search=id, oneshot=True, sort="newest", after=after, limit=_PAGE
            )
            for fact in page["handles"]:
                if fact["uid"] == id:
                    return [fact]
                if fact["id"] == id:
                    newest.setdefault(fact["conversation"], fact)
            after = page["next"]
            if after is None or (conversation is not None and newest):
                return list(newest.values())

    async def _check_expired(self, id: str, conversation: str | None) -> None:
        """Raise `KeepholdError` if the handle existed and expired, since no list contains it."""
        if "/" in id:  # the server would see another path, quoted or not
            return
        try:
            await self.get(f"/api/handles/{_part(id)}", conversation=conversation)
        except KeepholdError as error:
            if error.code in ("handle_expired", "server_unreachable"):
                raise

    async def handles(self, **wanted: Unpack[HandleFilter]) -> dict[str, Any]:
        return await self._listed("handles", **wanted)

    async def handle(self, uid: str, *, keys: bool = False) -> dict[str, Any]:
        if keys:
            raise KeepholdError(
                "a server gives no keys away; `keephold show --keys` on its machine, without --server, reads them from "
                "the store",
                code="invalid_arguments",
            )
        found: dict[str, Any] = await self.get(f"/api/handles/{_part(uid)}")
        output = found.get("output")
        if output is not None and "tail" not in output:
            end = await self.get(f"/api/handles/{_part(uid)}/output", from_end=_TAIL_BYTES)
            found["output"] = output | {"tail": end["text"]}
        return found

    @asynccontextmanager
    async def talk(self, fact: Mapping[str, Any], want: frames.Want) -> AsyncIterator[frames.Talk]:
        """Yield the exchange of frames with the handle's process."""
        talk = RemoteTalk(self, want)
        await talk.open()
        try:
            yield talk
        finally:
            await talk.close()

    async def abort(self, uid: str) -> Any:
        return await self.post(f"/api/handles/{_part(uid)}/abort", {}, timeout=None)

    async def retry(self, uid: str) -> Any:
        return await self.post(f"/api/handles/{_part(uid)}/retry", {})

    async def wait(self, *, timeout: float | None = None, **groups: Unpack[WaitGroups]) -> dict[str, Any]:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_SECS if until is None else min(_WAIT_SECS, max(0.0, until - time.monotonic()))
            waited: dict[str, Any] = await self.post("/api/wait", {**groups, "timeout": left}, timeout=None)
            if "timed_out" not in waited or (until is not None and time.monotonic() >= until):
                return waited

    # Open requests

    async def requests(self) -> tuple[list[dict[str, Any]], int]:
        found = await self.get("/api/requests", limit=_PAGE)
        return found, 0 if len(found) < _PAGE else (await self.stats())["requests"] - len(found)

    async def request(self, id: str) -> Any:
        return await self.get(f"/api/requests/{_part(id)}")

    async def decide(self, id: str, said: Mapping[str, Any]) -> Any:
        return await self.post(f"/api/requests/{_part(id)}", dict(said))

    async def permissions(self) -> Any:
        return await self.get("/api/permissions")

    async def revoke_permission(self, id: str) -> Any:
        return await self.post(f"/api/permissions/{_part(id)}/revoke", {})

    # Conversations

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        return await self._listed("conversations", after=after, limit=limit)

    async def _listed(self, what: str, *, after: str | None = None, limit: int = 50, **wanted: Any) -> dict[str, Any]:
        """Return a page, in as many requests as the server's page size needs."""
        listed: list[dict[str, Any]] = []
        while True:
            page = await self.get(f"/api/{what}", **wanted, after=after, limit=min(_PAGE, limit - len(listed)))
            listed += page[what]
            after = page["next"]
            if after is None or len(listed) >= limit:
                return {what: listed, "next": after}

    async def forget(self, conversation: str) -> Any:
        return await self.post("/api/forget", {"conversation": conversation})

    # Keys, notifications, and the rest

    async def revoke(self, conversation: str) -> Any:
        return await self.post("/api/keys/revoke", {"conversation": conversation})

    async def complete(self, key: str, resolution: Mapping[str, Any]) -> dict[str, Any]:
        response = await self.sent(
            self.client.build_request("POST", f"/complete/{_part(key)}", json=dict(resolution)), fine=(404, 409)
        )
        answered = await self.read(response)
        if not isinstance(answered, dict) or "status" not in answered:
            raise refused(response, answered)
        return {"status": answered["status"], "terminal": answered.get("terminal")}

    async def stats(self) -> Any:
        return await self.get("/api/stats")

    async def collect(self, *, older_than: float | None, dry_run: bool, vacuum: bool) -> Any:
        body = {"older_than": older_than, "dry_run": dry_run, "vacuum": vacuum}
        return await self.post("/api/collect", body, timeout=None)

    async def events(self, after: int) -> AsyncIterator[dict[str, Any]]:
        """Yield the store's events after that one as they happen. Two have no `seq`, since they are not stored:
        `reset`, if events after that place are no longer kept, and `requests`, when the open requests have changed."""
        while True:  # a server that was replaced ends the stream, and the new one continues it
            heard = False
            async for event in self.stream("/api/events", after=after):
                said = msgspec.json.decode(event.data)
                heard, after = True, said.get("seq", after)
                yield said if "seq" in said else {"type": event.event, "data": said}
            if not heard:
                await asyncio.sleep(_AGAIN_SECS)


def _part(text: str) -> str:
    return quote(text, safe="")


def address(url: str) -> SplitResult | None:
    """Return the parts of a server's URL; None unless it has http or https, a host and a valid port."""
    try:
        parts = urlsplit(url)
        httpx2.URL(url).copy_with(port=parts.port)  # each parser finds errors that the other misses
    except (ValueError, httpx2.InvalidURL):
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None


def is_local(url: str) -> bool:
    """Whether the server is on this machine: no proxy leads there, and it takes this machine's token."""
    parts = address(url)
    host = "" if parts is None else (parts.hostname or "").lower()
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def refused(response: httpx2.Response, answered: Any) -> KeepholdError:
    """Return the error of a response, normally `{"error": {"code", "message"}}`; a proxy may answer something else."""
    error = answered.get("error") if isinstance(answered, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return KeepholdError(error["message"], code=str(error.get("code") or "tool_error"))
    if isinstance(error, str):
        return KeepholdError(error, code=str(answered.get("code") or "server_refused"))
    return KeepholdError(
        f"{response.url} answered {response.status_code} {response.reason_phrase}, and not as a keephold server does; "
        "is the address right?",
        code="server_refused",
    )
