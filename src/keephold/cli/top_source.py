"""Where `keephold top` has its handles from: a store, or a server; and how it hears that something has changed.

Handles are read in pages, and again one by one when an event says that they have changed: nothing is polled. What only
the process that runs a handle knows (what it prints) is asked of that process, for the handles that are to be seen.

What `keephold top` has read: pages of handles, kept as events say that they change. Nothing of the terminal is here.

Only so much is read as is asked for: a page of what waits for a person, a page of what is live, and the next ones when
somebody goes there. A hundred thousand handles that have stopped cost nothing until they are wanted.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.cli.store import Where, opened, without_tools
from keephold.cli.top_rows import FADES_SECS, SORTS, Fact, Row, matches, need_fact, ordered, rows
from keephold.control.base import Controls
from keephold.control.feed import Feed, FeedItem
from keephold.control.safe_text import Plain, Readable, Rendered
from keephold.errors import KeepholdError
from keephold.turn import attach_protocol as frames

if TYPE_CHECKING:
    from keephold.control.remote import RemoteControl


PAGE = 200
_END = 1 << 62
"""An offset behind every output: asked from there on, a process says how long the output is."""
_TAIL = 1 << 16
_LINE_TAIL = 2048

Changes = Callable[[], AsyncIterator[set[str] | None]]


class Source:
    """What is to be seen, and what can be done about it."""

    def __init__(self, controls: Controls, changes: Changes, remote: "RemoteControl | None" = None) -> None:
        self._controls = controls
        self._remote = remote
        self.changes = changes
        """None first, and whenever everything may have changed: look at all of it. Then the uids of handles that have
        changed since, as they do; none of them, if it is something else. Raises `KeepholdError` if a server is gone."""

    @property
    def place(self) -> str:
        return self._controls.place

    # Looking

    async def page(self, state: str, search: str, after: str | None = None) -> tuple[list[Fact], str | None]:
        """Handles in a state, the newest first, and what the next page comes after."""
        oneshot = state != "stopped"  # one-shot calls that are over are nothing to see
        wanted = {"search": search} if search else {}
        found = await self._controls.handles(
            state=state, oneshot=oneshot, sort="newest", after=after, limit=PAGE, **wanted
        )
        return found["handles"], found["next"]

    async def fact(self, uid: str) -> Fact | None:
        """Everything of a handle; None if it is gone."""
        try:
            return await self._controls.handle(uid)
        except KeepholdError as error:
            if error.code in ("handle_expired", "handle_not_found"):
                return None
            raise

    async def needs(self) -> list[dict[str, Any]]:
        """What else waits for a person: a server keeps permissions and results, a store does not know of any."""
        if self._remote is None:
            return []
        return [need for need in await self._remote.needs() if need["kind"] in ("permission", "result")]

    async def printed(self, fact: Fact, *, tail: int = _TAIL) -> AsyncIterator[str]:
        """The end of what it has printed, and what it prints, until it stops: text that may be shown."""
        since = max(0, await self._printed_so_far(fact) - tail)
        readable: Readable = Plain()
        async with self._controls.talk(fact, frames.Want(uid=fact["uid"], want="follow", since=since)) as talk:
            while True:
                kind, payload = await talk.receive()
                if kind == frames.OUTPUT:
                    yield readable.feed(payload).decode(errors="replace")
                elif kind == frames.STATE:
                    cols = msgspec.json.decode(payload, type=frames.HandleStatus).cols
                    if cols and isinstance(readable, Plain):
                        readable = Rendered(cols)
                elif kind == frames.END:
                    yield readable.end().decode(errors="replace")
                    return

    async def last_lines(self, fact: Fact) -> AsyncIterator[str]:
        """The last line that it has printed, whenever that is another one."""
        held = ""
        async for text in self.printed(fact, tail=_LINE_TAIL):
            held = (held + text)[-_LINE_TAIL:]
            lines = [line.strip() for line in held.splitlines() if line.strip()]
            if lines:
                yield lines[-1]

    async def _printed_so_far(self, fact: Fact) -> int:
        async with self._controls.talk(fact, frames.Want(uid=fact["uid"], want="read", since=_END)) as talk:
            while True:
                kind, payload = await talk.receive()
                if kind in (frames.STATE, frames.END):
                    return msgspec.json.decode(payload, type=frames.HandleStatus).handle.output_bytes

    # Acting

    async def abort(self, uid: str) -> None:
        await self._controls.abort(uid)

    async def answer(self, fact: Fact, value: str, *, secret: bool) -> None:
        """Answer the question of a handle, as a person. Raises `KeepholdError` if it was not taken."""
        answers = (fact.get("question") or {}).get("key") or ""
        want = frames.Want(uid=fact["uid"], want="send", input=value, secret=secret, answers=answers)
        async with self._controls.talk(fact, want) as talk:
            while (await talk.receive())[0] != frames.REPLY:
                pass

    async def decide(self, need: str, decision: dict[str, Any]) -> str | None:
        """Decide what waits at a server; what was wrong with the decision, if something was."""
        assert self._remote is not None, "only a server has needs"
        told = await self._remote.decide(need, decision)
        return None if told["status"] == "taken" else str(told["problem"])


@asynccontextmanager
async def open_source(where: Where) -> AsyncIterator[Source]:
    """The server that is named, or the store."""
    if where.server:
        async with opened(where, acting=True) as controls:
            remote: Any = controls  # which is what `opened` gives for a server
            yield Source(controls, lambda: _remote_changes(remote), remote)
        return
    from keephold.cli.store_control import Stored

    async with without_tools(where.store) as runtime:
        feed = Feed(runtime)
        await feed.open()
        try:
            yield Source(Stored(runtime.registry.store, runtime), lambda: _stored_changes(feed))
        finally:
            feed.close()


async def _stored_changes(feed: Feed) -> AsyncIterator[set[str] | None]:
    place = feed.last
    yield None
    async for told in feed.listen(place):
        if told is None:
            yield None
        else:
            yield {each.event.uid for each in told if isinstance(each, FeedItem) and each.event.uid is not None}


async def _remote_changes(remote: "RemoteControl") -> AsyncIterator[set[str] | None]:
    place = (await remote.stats())["store"]["last_event"]
    yield None
    async for event in remote.events(place):
        uid = event.get("uid")
        yield None if event.get("type") == "reset" else {uid} if uid else set()


_FEW = 40
"""If more handles than this have changed, the pages are read again instead of each of them."""


class Model:
    """The table behind the table."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._facts: dict[str, Fact] = {}
        self._needs: list[Fact] = []
        self._next: dict[str, str | None] = {}
        """What the next page of a state comes after; None: there is no further one."""
        self.lines: dict[str, str] = {}
        """The last line that a handle has printed, by uid."""
        self.search = ""
        self.sort = SORTS[0]
        self.grouped = False
        self.over = False
        """Whether handles that have stopped are wanted, too."""

    @property
    def more(self) -> bool:
        """Whether there is a further page."""
        return any(self._next.values())

    def get(self, key: str) -> Fact | None:
        """The handle, or the need, of a row."""
        if key.startswith("need:"):
            return next((fact for fact in self._needs if fact["uid"] == key), None)
        return self._facts.get(key)

    # Reading

    async def load(self) -> None:
        """Read the first pages."""
        found: dict[str, Fact] = {}
        places: dict[str, str | None] = {}
        for state in ("waiting", "live", *(("stopped",) if self.over else ())):
            page, after = await self._source.page(state, self.search)
            found |= {fact["uid"]: fact for fact in page}
            places[state] = after
        self._facts, self._next = found, places
        await self._look_for_needs()

    async def load_more(self) -> None:
        """Read the next page of whatever has one: first of what waits, then of what is live, then of what is over."""
        state = next(state for state, after in self._next.items() if after is not None)
        page, self._next[state] = await self._source.page(state, self.search, self._next[state])
        self._facts |= {fact["uid"]: fact for fact in page}

    async def read(self, changed: set[str]) -> None:
        """Read what has changed."""
        if len(changed) > _FEW:
            await self.load()
            return
        for uid in changed:
            fact = await self._source.fact(uid)
            if fact is None or not self._is_wanted(fact):
                self._facts.pop(uid, None)
            else:
                self._facts[uid] = fact
        await self._look_for_needs()

    async def _look_for_needs(self) -> None:
        needs = [need_fact(need) for need in await self._source.needs()]
        self._needs = [fact for fact in needs if matches(fact, self.search)]

    def _is_wanted(self, fact: Fact) -> bool:
        if not matches(fact, self.search):
            return False
        if fact["state"] != "stopped" or self.over:
            return True
        return fact["uid"] in self._facts  # it was to be seen, so its end is, too

    # Showing

    def rows(self) -> list[Row]:
        """The table as it is now."""
        now = time.time()
        if not self.over:
            faded = [uid for uid, fact in self._facts.items() if (fact["stopped"] or now) < now - FADES_SECS]
            for uid in faded:
                del self._facts[uid]
        facts = ordered(self._lines(), self.sort, grouped=self.grouped)
        return rows(facts, self.lines, now, grouped=self.grouped)

    def _lines(self) -> list[Fact]:
        """Needs and handles. A call that waits for a permission is both, and has one line."""
        needs, held = [], set()
        for fact in self._needs:
            handle = self._facts.get(fact["need"]["handle"] or "")
            if handle is not None and handle["state"] == "pending":
                held.add(handle["uid"])
            needs.append(fact if handle is None else {**fact, "id": handle["id"]})
        return [*needs, *(fact for uid, fact in self._facts.items() if uid not in held)]

    def snapshot(self) -> dict[str, object]:
        """What `--json` prints."""
        facts = ordered(self._facts.values(), self.sort, grouped=False)
        return {"handles": facts, "needs": [fact["need"] for fact in self._needs], "more": self.more}

    def summary(self) -> str:
        """How much there is, in a line."""
        asking = len(self._needs) + sum(fact["state"] == "waiting" for fact in self._facts.values())
        live = sum(fact["state"] != "stopped" for fact in self._facts.values())
        said = [f"{live}{'+' if self.more else ''} live", f"{asking} need{'s' * (asking == 1)} you"]
        said.append(f"by {self.sort}" if self.sort != SORTS[0] else "urgent first")
        return " · ".join(said + ([f"/{self.search}"] if self.search else []))
