"""What is to be seen of a system that runs: handles, conversations, keys, news, numbers. Nothing here changes anything.
No key leaves it: where one was written, its id is shown (K5).

Pages are cut by the store; what this runtime runs is described as it is in memory, which is ahead of the store.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from holdfast.control.facts import details, entry_json, facts, live_facts, question_json, wait_json
from holdfast.control.needs import Needs, need_json
from holdfast.durable.keys import masked
from holdfast.errors import HoldfastError
from holdfast.handles.handle import Handle
from holdfast.handles.state import Stopped, Waiting
from holdfast.runtime import Runtime
from holdfast.schema.canonical import canonical
from holdfast.store.base import Expired, Kind, News, Record, StoredEvent, WaitRow
from holdfast.tools.waiting.execute_agent import NAME as EXECUTE_AGENT
from holdfast.turn.lineage import parent_of
from holdfast.turn.prompts import Prompt

PAGE = 200
"""The most handles, conversations or lines of one page."""
STATES = ("live", "pending", "running", "waiting", "parked", "stopped")
SORTS = ("newest", "oldest", "stopped", "tool", "id")
KINDS: tuple[str, ...] = get_args(Kind)
_WAITING_TOOLS = ("await", "wait_for", "wait_for_multiple")
_LANES = 500
"""Calls of one turn that a timeline has."""
_QUEUED = 200
_EVENTS = 1000
"""Events that are looked through: of one handle for its timeline, of news for the conversations that have any."""


class Looking:
    """A runtime, and the person's side of it, to be looked at."""

    def __init__(
        self, runtime: Runtime, needs: Needs | None = None, *, snapshot: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """`needs` is what waits for a person; `snapshot` tells the numbers of this process."""
        self.runtime = runtime
        self.prompts = needs
        if needs is not None:
            runtime.people.passed_on = needs.passed
        self._snapshot = snapshot
        self._store = runtime.registry.store
        self._began = time.time()

    # Handles

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
        """A page of handles; `next` is the `after` of the one that follows, None on the last."""
        _check("state", state, STATES)
        _check("kind", kind, KINDS)
        _check("sort", sort, SORTS)
        size = max(1, min(limit, PAGE))
        records = await self._store.handles(
            conversation=conversation or None,
            state=None if state in ("parked", "live") else state,
            parked=True if state == "parked" else None,
            live=state == "live",
            kind=kind,  # type: ignore[arg-type]  # checked above
            tool=tool or None,
            search=search or None,
            stateful=None if oneshot else True,
            sort="created" if sort in ("newest", "oldest") else sort,  # type: ignore[arg-type]
            newest=sort in ("newest", "stopped"),
            after=after or None,
            limit=size + 1,
        )
        listed = [self.fact(record) for record in records[:size]]
        return {"handles": listed, "next": records[size - 1].uid if len(records) > size else None}

    def fact(self, record: Record) -> dict[str, Any]:
        """A handle at a glance."""
        handle = self.runtime.registry.loaded(record.uid)
        if handle is not None and handle.owner not in (self._store.owner, None):
            handle = None
        fact = live_facts(handle, facts(self._store, record))
        tool, output = self.runtime.toolbox.get(record.tool), record.output
        if (tool is not None and tool.source == "terminal") or (output is not None and output.times):
            fact["terminal"] = True
        if output is not None and fact["output_bytes"] is None:
            fact["output_bytes"] = output.total
        return fact

    async def record(self, ref: str, conversation: str | None = None) -> Record:
        """The handle of a uid, or the newest of an id in a conversation. Raises `HoldfastError` if there is none."""
        record: Record | Expired | None = await self._store.handle(ref)
        if record is None and conversation is not None:
            record = await self._store.named(conversation, ref)
        if isinstance(record, Expired):
            raise HoldfastError(
                f"Handle `{ref}` has expired: it stopped longer ago than is kept", code="handle_expired"
            )
        if record is None:
            where = "" if conversation is None else f" in conversation `{conversation}`"
            raise HoldfastError(f"Handle `{ref}` not found{where}; name it by its uid", code="handle_not_found")
        return record

    async def handle(self, ref: str, conversation: str | None = None) -> dict[str, Any]:
        """Everything of a handle but its keys and what it printed; of its journal the end."""
        record = await self.record(ref, conversation)
        fact = self.fact(record)
        output = fact["output_bytes"]
        entries, count = await self._store.journal_end(record.uid, limit=PAGE)
        return {
            **fact,
            **details(record),
            "waits": [wait_json(row) for row in await self._store.waits(record.uid)],
            "journal": [entry_json(entry) for entry in reversed(entries)],
            "journal_entries": count,
            "output": None if output is None else {"bytes": output},
        }

    async def journal(self, uid: str, *, before: int | None = None, limit: int = PAGE) -> dict[str, Any]:
        """What a replay of the call would find again: steps with what went in and what came out, newest first. `next`
        is the `before` of earlier ones."""
        size = max(1, min(limit, PAGE))
        entries, count = await self._store.journal_end(uid, before=before, limit=size)
        left = max(0, (count if before is None else min(before, count)) - size)
        return {"entries": [entry_json(entry) for entry in entries], "count": count, "next": left or None}

    async def _whole_journal(self, uid: str) -> list[dict[str, Any]]:
        found = []
        for number, entry in enumerate(await self._store.journal(uid), 1):
            if entry.kind != "trace":
                found.append(entry_json(entry))
            if not number % PAGE:
                await asyncio.sleep(0)  # a long one takes a while
        return found

    async def timeline(self, uid: str) -> list[dict[str, Any]]:
        """What has happened to a handle, oldest first, as far as it is kept; of very much, the end."""
        newest = await self._store.events(uid=uid, newest=True, limit=_EVENTS)
        return [event_json(event) for event in reversed(newest)]

    async def waiters(self, uid: str) -> list[dict[str, Any]]:
        """The calls that wait for a handle just now, wherever they run."""
        record = await self.record(uid)
        here = {handle.uid: handle for handle in self.runtime.registry.live(record.conversation)}
        found = [
            _waiter(handle.uid, handle.tool.name, handle.id, handle.conversation, handle.state.created)
            for handle in here.values()
            if handle.active and handle.tool.name in _WAITING_TOOLS and record.id in self._waits_on(handle)
        ]
        rows = await self._store.handles(conversation=record.conversation, live=True, stateful=False, limit=PAGE)
        return found + [
            _waiter(row.uid, row.tool, row.id, row.conversation, row.state.created)
            for row in rows
            if row.uid not in here and row.tool in _WAITING_TOOLS and record.id in waits_on(row.arguments)
        ]

    def _waits_on(self, handle: Handle) -> list[str]:
        return waits_on(handle.run.arguments) if handle.run is not None else []

    async def workflow(self, uid: str) -> dict[str, Any]:
        """How far a workflow is."""
        from holdfast.control.workflows import workflow_json

        record = await self.record(uid)
        if record.kind != "workflow":
            raise HoldfastError(f"Handle `{record.id}` is no workflow but a {record.kind}", code="invalid_arguments")
        active = not isinstance(record.state, Stopped)
        found: dict[str, Any] = workflow_json(
            masked(record.arguments), await self._whole_journal(record.uid), active=active, now=time.time()
        )
        return found

    # What waits for a person

    async def needs(self, *, handle: str | None = None, limit: int = PAGE) -> list[dict[str, Any]]:
        """Whatever a person has to decide: what is asked here, and open questions of handles that others run; the first
        of it. With `handle`, what is asked of that uid."""
        size, listed = max(1, min(limit, PAGE)), []
        if self.prompts is not None:
            listed = self.prompts.listed(size) if handle is None else self.prompts.listed(size, self._is_about(handle))
            self._name_handles(listed)
        asking = [each for each in await self._asking_elsewhere() if handle in (None, each.uid)]
        return (listed + [_question_need(record) for record in asking])[:size]

    async def need(self, id: str) -> dict[str, Any] | None:
        """One of it; None if it is not open any more."""
        found = self.prompts.described(id) if self.prompts is not None else None
        if found is not None:
            return found
        asking = map(_question_need, await self._asking_elsewhere())
        return next((need for need in asking if need["id"] == id), None)

    async def count_needs(self) -> int:
        """How much there is of it."""
        here = len(self.prompts) if self.prompts is not None else 0
        return here + len(await self._asking_elsewhere())

    def _is_about(self, uid: str) -> Callable[[Prompt], bool]:
        handle = self.runtime.registry.loaded(uid)
        named = None if handle is None else (handle.conversation, handle.id)
        return lambda prompt: prompt.uid == uid or (prompt.uid is None and (prompt.conversation, prompt.id) == named)

    def _name_handles(self, needs: list[dict[str, Any]]) -> None:
        """A permission to send something to a handle knows it by its id alone."""
        known: dict[str, dict[str, str]] = {}
        for need in needs:
            if need["handle"] is None and need["handle_id"] is not None:
                place = need["conversation"]
                if place not in known:
                    known[place] = {handle.id: handle.uid for handle in self.runtime.registry.live(place)}
                need["handle"] = known[place].get(need["handle_id"])

    async def _asking_elsewhere(self) -> list[Record]:
        store = self._store
        waiting = await store.handles(state="waiting", stateful=None, limit=PAGE)
        return [record for record in waiting if record.owner not in (None, store.owner) and store.alive(record.owner)]

    # Conversations

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        """A page of conversations, by name: whatever has handles, turns or a transcript."""
        size = max(1, min(limit, PAGE))
        places = await self._store.places(after=after or "", limit=size + 1)
        listed = []
        for place in places[:size]:
            turn = await self._store.turn(place.id)
            listed.append(
                {
                    "id": place.id,
                    "handles": place.handles,
                    "live": place.live,
                    "updated": place.updated or None,
                    "title": masked((place.described or {}).get("title")),
                    "turn_open": turn is not None,
                    "owner": None if turn is None else self._owner(turn.owner),
                    "parent": parent_of(place.id),
                }
            )
        return {"conversations": listed, "next": places[size - 1].id if len(places) > size else None}

    async def conversation(self, id: str, *, before: int | None = None, limit: int = 20) -> dict[str, Any]:
        """A conversation and its turns, newest first; `before` is the number of the last one of the page before."""
        described, size = await self._store.conversation(id), max(1, min(limit, PAGE))
        turns = await self._store.turns(id, before=before, limit=size + 1)
        if described is None and not turns and not await self._store.handles(conversation=id, stateful=None, limit=1):
            raise HoldfastError(f"there is no conversation `{id}`", code="conversation_not_found")
        return {
            "id": id,
            "title": masked(described.metadata.get("title")) if described else None,
            "created": described.created if described else None,
            "updated": described.updated if described else None,
            "lines": described.lines if described else 0,
            "parent": parent_of(id),
            "turns": [
                {
                    "number": turn.number,
                    "turn": turn.turn,
                    "began": turn.began_at,
                    "ended": turn.ended_at,
                    "batches": turn.batches,
                    "owner": self._owner(turn.owner),
                }
                for turn in turns[:size]
            ],
            "next": turns[size - 1].number if len(turns) > size else None,
        }

    def _owner(self, owner: str | None) -> str | None:
        return None if owner is None else "alive" if self._store.alive(owner) else "gone"

    async def inquiries(self, conversation: str, limit: int = 20) -> list[dict[str, Any]]:
        """What a model was asked beside a conversation, and what it answered (Q6), newest first."""
        rows = await self._store.inquiries(conversation, newest=True, limit=max(1, min(limit, PAGE)))
        return [masked(msgspec.to_builtins(row)) for row in rows]

    async def calls(self, conversation: str, turn: str | None = None) -> list[dict[str, Any]]:
        """The calls of a conversation, or of one turn of it, the newest of them, in the order they came."""
        records = await self._store.handles(
            conversation=conversation, turn=turn, stateful=None, newest=True, limit=_LANES
        )
        return [
            {
                **self.fact(record),
                "batch": record.batch,
                "position": record.position,
                "call_id": record.call_id,
                "waits_on": masked(waits_on(record.arguments)) if record.tool in _WAITING_TOOLS else [],
                "serial": self.runtime.registry.tool(record.tool).scheduling == "serial",
            }
            for record in reversed(records)
        ]

    async def transcript(self, id: str, after: int = 0, limit: int = 100) -> dict[str, Any]:
        """What was said in a conversation after that line."""
        size = max(1, min(limit, PAGE))
        lines = await self._store.transcript(id, after, size + 1)
        shown = [
            {"line": each.number, "turn": each.turn, "kind": each.kind, "at": each.at, "body": _body(each.body)}
            for each in lines[:size]
        ]
        return {"lines": shown, "next": lines[size - 1].number if len(lines) > size else None}

    # Keys, news, tools, numbers

    async def keys(self, conversation: str | None = None, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        """A page of the keys that are open, by their ids, those of a conversation together: a key itself is nowhere
        shown (D3)."""
        size = max(1, min(limit, PAGE))
        found = await self._store.open_waits(conversation=conversation, after=after or None, limit=size + 1)
        listed = [_key(row, record) for row, record in found[:size]]
        return {"keys": listed, "next": listed[-1]["key_id"] if len(found) > size else None}

    async def count_keys(self, conversations: Sequence[str]) -> dict[str, int]:
        """How many keys are open in each of these conversations."""
        return await self._store.count_open_waits(conversations)

    async def notifications(
        self, conversation: str | None = None, before: int | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """News that is queued, and what has become of news, newest first; `next` is the `before` of what follows."""
        size = max(1, min(limit, PAGE))
        names = [conversation] if conversation else await self._with_news()
        queued = [_news(news) for name in names for news in await self._store.news(name, _QUEUED)]
        past = await self._store.events(
            news=True, conversation=conversation, newest=True, before=before, limit=size + 1
        )
        return {
            "queued": queued[:_QUEUED],
            "history": [event_json(event) for event in past[:size]],
            "next": past[size - 1].seq if len(past) > size else None,
        }

    async def _with_news(self) -> list[str]:
        """Conversations that may have news, those with the newest first: there may be many that never had any."""
        told = await self._store.events(news=True, newest=True, limit=_EVENTS)
        return list(dict.fromkeys(event.conversation for event in told))

    async def tools(self) -> list[dict[str, Any]]:
        """What can be called: what MCP clients are given."""
        return [
            {
                "name": tool.name,
                "source": tool.source,
                "builtin": tool.source == "builtin" or tool.launching is not None,
                "description": tool.description or tool.summary or "",
                "actions": list(tool.actions),
                "run": tool.run,
                "parameters": canonical(tool),
            }
            for tool in self.runtime.toolbox.served()
            if tool.name != EXECUTE_AGENT or self.runtime.has_agents
        ]

    async def stats(self) -> dict[str, Any]:
        """Numbers: of the store, and of this process since its start."""
        first, last = await self._store.events_range()
        path = getattr(self._store, "path", None)
        return {
            "handles": await self._store.count(),
            "needs": await self.count_needs(),
            "server": {"started": self._began, **(self._snapshot() if self._snapshot is not None else {})},
            "store": {
                "path": None if path is None else str(path),
                "bytes": await asyncio.to_thread(_size, path) if path is not None else None,
                "first_event": first,
                "last_event": last,
            },
        }


def event_json(event: StoredEvent) -> dict[str, Any]:
    """A stored event. News may say what a tool asks, which may be about a key (K5)."""
    found: dict[str, Any] = masked(msgspec.to_builtins(event))
    return found


def waits_on(arguments: Any) -> list[str]:
    """The ids that a call of `await` or of a wait tool names."""
    if not isinstance(arguments, dict):
        return []
    named: list[Any] = [arguments.get("handleId")]
    for key in ("any", "all", "handleIds"):
        given = arguments.get(key)
        named += given if isinstance(given, list) else []
    return [each for each in dict.fromkeys(map(_text, named)) if each]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _check(what: str, given: str | None, known: Iterable[str]) -> None:
    if given is not None and given not in known:
        raise HoldfastError(f"`{what}` must be one of {', '.join(known)}", code="invalid_arguments")


def _waiter(uid: str, kind: str, id: str, conversation: str, since: float) -> dict[str, Any]:
    return {"kind": kind, "uid": uid, "id": id, "conversation": conversation, "since": since}


def _question_need(record: Record) -> dict[str, Any]:
    """The open question of a handle that another process runs, as a need."""
    state = record.state
    assert isinstance(state, Waiting)
    return need_json(
        f"handle-{record.uid}-{state.number}",
        "secret" if state.question.secret else "question",
        conversation=record.conversation,
        tool=record.tool,
        handle=record.uid,
        handle_id=record.id if record.stateful else None,
        since=state.asked,
        question=question_json(state.question, state.number),
    )


def _key(row: WaitRow, record: Record) -> dict[str, Any]:
    return {
        "key_id": row.key_id,
        "kind": row.kind,
        "name": row.name,
        "conversation": row.conversation,
        "uid": record.uid,
        "id": record.id,
        "tool": record.tool,
        "deadline": record.parking.deadline if record.parking is not None else None,
    }


def _news(news: News) -> dict[str, Any]:
    return {
        "number": news.number,
        "conversation": news.conversation,
        "kind": news.kind,
        "level": news.level,
        "message": masked(news.message),
        "at": news.at,
        "uid": news.uid,
        "carriers": list(news.carriers),
    }


def _body(body: bytes) -> Any:
    return masked(msgspec.json.decode(body))


def _size(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
