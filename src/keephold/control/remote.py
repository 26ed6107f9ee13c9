"""The operations of `Control`, asked of a server over HTTP (`/api`), for `keephold … --server URL`.

What the server refuses is the same `KeepholdError` as it would be here.
"""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from keephold.control.base import Talk
from keephold.control.remote_requests import PATIENT, Requests, refused
from keephold.control.remote_talk import RemoteTalk
from keephold.control.resolve_handle import choose
from keephold.errors import KeepholdError
from keephold.handles.text import to_json
from keephold.turn import attach_protocol as frames

_PAGE = 200
_WAIT_SECS = 50.0
"""How long one request waits: no proxy or firewall on the way takes such a connection for dead."""
_TAIL_BYTES = 4096


class RemoteControl(Requests):
    """The operations, by requests. Use it as an async context manager."""

    # Handles

    async def find(self, ids: Iterable[str], conversation: str | None) -> list[dict[str, Any]]:
        wanted = list(dict.fromkeys(ids))
        found = {id: await self._candidates(id, conversation) for id in wanted}
        for id in wanted:
            if not found[id]:
                await self._check_expired(id, conversation)
        return choose(wanted, found, self.place, lambda fact: (fact["conversation"], fact["state"] != "stopped"))

    async def _candidates(self, id: str, conversation: str | None) -> list[dict[str, Any]]:
        """The handle of that uid, or the live ones of that id; if there is none, the newest of each conversation."""
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
        """Raise `KeepholdError` for one that was there once: no list has it any more."""
        if "/" in id:  # to the server it is another path, quoted or not
            return
        try:
            await self.get(f"/api/handles/{_part(id)}", conversation=conversation)
        except KeepholdError as error:
            if error.code in ("handle_expired", "server_unreachable"):
                raise

    async def handles(
        self,
        *,
        conversation: str | None = None,
        state: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        search: str | None = None,
        sort: str = "newest",
        after: str | None = None,
        limit: int = 50,
        oneshot: bool = False,
    ) -> dict[str, Any]:
        """A page of facts. However many are wanted, the server is asked for so many at once as it gives."""
        asked = {
            "conversation": conversation, "state": state, "kind": kind, "tool": tool, "search": search, "sort": sort,
            "oneshot": "true" if oneshot else None,
        }  # fmt: skip
        listed: list[dict[str, Any]] = []
        while True:
            page = await self.get("/api/handles", **asked, after=after, limit=min(_PAGE, limit - len(listed)))
            listed += page["handles"]
            after = page["next"]
            if after is None or len(listed) >= limit:
                return {"handles": listed, "next": after}

    async def handle(self, ref: str, conversation: str | None = None, *, keys: bool = False) -> dict[str, Any]:
        if keys:
            raise KeepholdError(
                "a server gives no keys away; `keephold show --keys` on its machine, without --server, reads them from "
                "the store",
                code="invalid_arguments",
            )
        found: dict[str, Any] = await self.get(f"/api/handles/{_part(ref)}", conversation=conversation)
        output = found.get("output")
        if output is not None and "tail" not in output:
            end = await self.output(found["uid"], from_end=_TAIL_BYTES)
            found["output"] = output | {"tail": end["text"]}
        return found

    async def waits_for_resume(self, uid: str) -> bool:
        found = await self.get(f"/api/handles/{_part(uid)}")
        turns = (await self.conversation(found["conversation"]))["turns"]
        return any(
            turn["turn"] == found["turn"] and turn["ended"] is None and turn["batches"] == found["batch"]
            for turn in turns
        ) and (found["state"] == "pending" or not found["stateful"])

    async def timeline(self, uid: str) -> Any:
        return await self.get(f"/api/handles/{_part(uid)}/timeline")

    async def waiters(self, uid: str) -> Any:
        return await self.get(f"/api/handles/{_part(uid)}/waiters")

    async def journal(self, uid: str, *, before: int | None = None, limit: int = _PAGE) -> Any:
        return await self.get(f"/api/handles/{_part(uid)}/journal", before=before, limit=limit)

    async def output(
        self, uid: str, *, offset: int = 0, limit: int = 65536, from_end: int | None = None, pattern: str | None = None
    ) -> Any:
        where = f"/api/handles/{_part(uid)}/output"
        return await self.get(where, offset=offset, limit=limit, from_end=from_end, pattern=pattern)

    async def follow(self, uid: str, offset: int = 0) -> AsyncIterator[dict[str, Any]]:
        """What it prints and how it changes, as it happens, until it has stopped."""
        async for event in self.stream(f"/api/handles/{_part(uid)}/follow", offset=offset):
            told = msgspec.json.decode(event.data)
            if event.event == "refused":
                raise KeepholdError(told["message"], code=told["code"])
            yield told

    def talk(self, fact: Mapping[str, Any], want: frames.Want) -> AbstractAsyncContextManager[Talk]:
        return self._talk(str(fact["uid"]), want)

    @asynccontextmanager
    async def _talk(self, uid: str, want: frames.Want) -> AsyncIterator[Talk]:
        """The frames that the process which runs the handle sends, by way of the server."""
        body = to_json(want)
        request = self.client.build_request(
            "POST", f"/api/handles/{_part(uid)}/talk", content=body, timeout=PATIENT,
            headers={"content-type": "application/json"},
        )  # fmt: skip
        response = await self.sent(request)
        talk = RemoteTalk(self.client, response, self.url)
        try:
            yield talk
        finally:
            await talk.close()

    async def apply(
        self,
        uid: str,
        input: Any | msgspec.UnsetType = msgspec.UNSET,
        keys: Sequence[str] = (),
        *,
        secret: bool = False,
    ) -> Any:
        given = {"keys": list(keys), "secret": secret} | ({} if input is msgspec.UNSET else {"input": input})
        return await self.post(f"/api/handles/{_part(uid)}/apply", given)

    async def answer(self, uid: str, value: Any, *, question: str | None = None) -> Any:
        given = {"answer": value} | ({} if question is None else {"question": question})
        return await self.post(f"/api/handles/{_part(uid)}/answer", given)

    async def abort(self, uid: str) -> Any:
        return await self.post(f"/api/handles/{_part(uid)}/abort", {}, timeout=None)

    async def wait_for(self, facts: Sequence[dict[str, Any]], *, any: bool, timeout: float | None) -> dict[str, Any]:
        uids = [fact["uid"] for fact in facts]
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_SECS if until is None else min(_WAIT_SECS, max(0.0, until - time.monotonic()))
            waited = await self.wait(all=() if any else uids, any=uids if any else (), timeout=left)
            if "timed_out" not in waited or (until is not None and time.monotonic() >= until):
                return waited

    async def wait(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        timeout: float | None = None,
        conversation: str | None = None,
    ) -> dict[str, Any]:
        body = {"all": list(all), "any": list(any), "timeout": timeout, "conversation": conversation}
        given = {name: value for name, value in body.items() if value not in (None, [])}
        waited: dict[str, Any] = await self.post("/api/wait", given, timeout=None)
        return waited

    # What waits for a person

    async def needs(self) -> Any:
        return await self.get("/api/needs")

    async def decide(self, need_id: str, decision: Mapping[str, Any]) -> Any:
        return await self.post(f"/api/needs/{_part(need_id)}", dict(decision))

    # Conversations

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        found: dict[str, Any] = await self.get("/api/conversations", after=after, limit=limit)
        return found

    async def conversation(self, id: str, *, before: int | None = None, limit: int = 20) -> Any:
        return await self.get(f"/api/conversations/{_part(id)}", before=before, limit=limit)

    async def calls(self, conversation: str, turn: str | None = None) -> Any:
        return await self.get("/api/calls", conversation=conversation, turn=turn)

    async def transcript(self, id: str, after: int = 0, limit: int = 200) -> Any:
        return await self.get("/api/transcript", conversation=id, after=after, limit=limit)

    async def forget(self, conversation: str) -> dict[str, Any]:
        forgotten: dict[str, Any] = await self.post("/api/forget", {"conversation": conversation})
        return forgotten

    # Keys, news, and the rest

    async def keys(self, conversation: str | None = None, after: str | None = None, limit: int = 50) -> Any:
        return await self.get("/api/keys", conversation=conversation, after=after, limit=limit)

    async def revoke(self, conversation: str) -> dict[str, Any]:
        revoked: dict[str, Any] = await self.post("/api/keys/revoke", {"conversation": conversation})
        return revoked

    async def complete(self, key: str, resolution: Mapping[str, Any]) -> dict[str, Any]:
        response = await self.sent(
            self.client.build_request("POST", f"/complete/{_part(key)}", json=dict(resolution)), fine=(404, 409)
        )
        answered = await self.read(response)
        if not isinstance(answered, dict) or "status" not in answered:
            raise refused(response, answered)
        return {"status": answered["status"], "terminal": answered.get("terminal")}

    async def notifications(self, conversation: str | None = None, before: int | None = None, limit: int = 50) -> Any:
        return await self.get("/api/notifications", conversation=conversation, before=before, limit=limit)

    async def stats(self) -> Any:
        return await self.get("/api/stats")

    async def tools(self) -> Any:
        return await self.get("/api/tools")

    async def workflow(self, uid: str) -> Any:
        return await self.get(f"/api/handles/{_part(uid)}/workflow")

    async def collect(self, *, older_than: float | None, dry_run: bool, vacuum: bool) -> dict[str, Any]:
        body = {"older_than": older_than, "dry_run": dry_run, "vacuum": vacuum}
        collected: dict[str, Any] = await self.post("/api/collect", body, timeout=None)
        return collected

    async def events(
        self, after: int | None = None, *, conversation: str | None = None, uid: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The store's events, as they happen. Some have no `seq`, as they are not stored: `reset`, if events after that
        place are not kept any more, and `needs`, when something else waits for a person."""
        async for event in self.stream("/api/events", after=after, conversation=conversation, uid=uid):
            told = msgspec.json.decode(event.data)
            yield told if "seq" in told else {"type": event.event, "data": told}


def _part(text: str) -> str:
    return quote(text, safe="")
