"""The data behind `keephold top`: pages of handles from a store or a server, the events that change them, and the rows
of the table.

Nothing is polled: an event makes its handle be read again. The output of a running handle comes from its process, and
only for visible handles. Only visible pages are read, however many handles there are. In the table, handles that need
an answer come first. Texts of tools and models come out without the controls that a terminal would obey (K4).
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from keephold.cli.printing import duration, narrow, one_line, state_words
from keephold.cli.store import Where, served, without_tools
from keephold.control.base import Controls
from keephold.control.feed import Feed, FeedItem
from keephold.control.handle_json import held_up_text
from keephold.control.safe_text import Plain, Readable, Rendered
from keephold.errors import KeepholdError
from keephold.turn import attach_protocol as frames

if TYPE_CHECKING:
    from keephold.control.remote import RemoteControl

Fact = dict[str, Any]

SORTS = ("urgent", "newest", "oldest", "tool", "id")
HEAD = ("STATE", "ID", "TOOL", "CONVERSATION", "TIME", "LAST")
FADES_SECS = 20.0
"""How long a stopped handle stays visible, unless all stopped ones are shown."""
FAILED, FAILED_SECS = 12, 900.0
"""How many failed handles are visible from the start, and how long they stay."""

_NEEDS_YOU, _ORPHANED, _RUNS, _QUEUED, _PARKED, _OVER = range(6)
_COLOURS = ("bold yellow", "red", "green", "", "cyan", "dim")
_WIDEST = (24, 28, 20, 24, 7)  # the last column takes the rest
_SHRINKING = range(4)
_NARROWEST = 8
_LAST_LEAST = 20
PAGE = 200
_FEW = 40
"""If more handles than this have changed, whole pages are read again."""
_END = 1 << 62
"""An offset beyond every output: a process asked from there answers with the output's length."""
_TAIL = 1 << 16
_LINE_TAIL = 2048
Changes = Callable[[], AsyncIterator[set[str] | None]]


class Row(NamedTuple):
    """A line of the table. `key` is a handle's uid, `request:` and a request's id, or `group:` and a name."""

    key: str
    cells: tuple[str, ...]
    style: str


def rank(fact: Fact) -> int:
    """Return how urgent it is: lower is more urgent."""
    if fact["state"] == "stopped":
        return _OVER
    if fact["state"] == "waiting" or fact.get("request"):
        return _NEEDS_YOU
    if fact["owner"] == "gone" and not fact.get("kept"):
        return _ORPHANED
    if fact["parked"]:
        return _PARKED
    return _QUEUED if fact["state"] == "pending" else _RUNS


def has_failed(fact: Fact) -> bool:
    """Return whether a spawned handle has failed. An abort was somebody's wish."""
    return fact["state"] == "stopped" and fact["stateful"] and fact["ok"] is False and fact["ended_by"] != "abort"


def has_faded(fact: Fact, now: float) -> bool:
    """Return whether a handle stopped so long ago that it is not shown, unless all stopped ones are."""
    return fact["stopped"] is not None and fact["stopped"] < now - (FAILED_SECS if has_failed(fact) else FADES_SECS)


def matches(fact: Fact, text: str) -> bool:
    """Return whether the filter matches its id, tool or uid, as in the store."""
    return not text or any(text in fact[key] for key in ("id", "tool", "uid"))


def ordered(facts: Iterable[Fact], sort: str, *, grouped: bool) -> list[Fact]:
    """Sort the facts, those that need an answer first; with `grouped`, keep conversations together."""
    found = sorted(facts, key=lambda fact: (rank(fact) != _NEEDS_YOU, *_key(fact, sort), fact["uid"]))
    if not grouped:
        return found
    places: dict[str, int] = {}
    for fact in found:  # conversations are in the order of their first facts
        places.setdefault(fact["conversation"], len(places))
    return sorted(found, key=lambda fact: places[fact["conversation"]])


def _key(fact: Fact, sort: str) -> tuple[Any, ...]:
    match sort:
        case "newest":
            return (-fact["created"],)
        case "oldest":
            return (fact["created"],)
        case "tool":
            return (fact["tool"], fact["id"])
        case "id":
            return (fact["id"],)
    urgency = rank(fact)
    return (urgency, fact["created"] if urgency == _NEEDS_YOU else -fact["created"])


def rows(facts: Sequence[Fact], lines: dict[str, str], now: float, *, grouped: bool) -> list[Row]:
    """Return the table, in the order of the facts. `lines` has the last lines of output by uid."""
    shown: list[Row] = []
    group: str | None = None
    for fact in facts:
        if grouped and fact["conversation"] != group:
            group = fact["conversation"]
            shown.append(Row(f"group:{group}", ("", one_line(group), "", "", "", ""), "bold"))
        shown.append(Row(fact["uid"], cells(fact, lines.get(fact["uid"], ""), now), _COLOURS[rank(fact)]))
    return shown


def cells(fact: Fact, line: str, now: float) -> tuple[str, ...]:
    state = fact["request"]["kind"] if fact.get("request") else state_words({**fact, "held_up": ()}, now)
    began = fact["started"] or fact["created"]
    spent = (fact["stopped"] or now) - began
    last = one_line(latest(fact, line))
    return (state, one_line(fact["id"]), one_line(fact["tool"]), one_line(fact["conversation"]), duration(spent), last)


def latest(fact: Fact, line: str) -> str:
    """Return the latest text: the question, the error, why it waits, the progress, or the last line of output."""
    request, question = fact.get("request"), fact.get("question")
    if request:
        asked = f"may it {request['action'] or 'run'}?"
        return asked if request["kind"] == "permission" else "may its result be shown?"
    if question:
        return f"? {question['text']}"
    if fact["state"] == "stopped":
        return fact.get("message") or line
    if fact.get("held_up"):
        return ", ".join(held_up_text(each) for each in fact["held_up"])
    return _progress(fact.get("progress")) or line or fact.get("last_line") or ""


def _progress(progress: dict[str, Any] | None) -> str:
    if progress is None:
        return ""
    done, total, message = progress["done"], progress["total"], progress["message"]
    share = "" if done is None else f"{done:g}/{total:g}" if total else f"{done:g}"
    return " ".join(part for part in (share, message) if part)


def widths(shown: Sequence[Row], room: int) -> list[int]:
    """Return the widths of the columns, so that they fit; the last one takes the rest."""
    asked = [max([len(name), *(len(row.cells[at]) for row in shown)]) for at, name in enumerate(HEAD)]
    found, left = list(map(min, asked, _WIDEST)), room - 2 * len(HEAD)
    narrow(found, _SHRINKING, _NARROWEST, left - _LAST_LEAST)
    return [*found, max(left - sum(found), _NARROWEST)]


def request_fact(request: dict[str, Any]) -> Fact:
    """Return an open request, which may have no handle yet, as a row of the table."""
    return {
        "uid": f"request:{request['id']}",
        "id": request["handle_id"] or "-",
        "tool": request["tool"],
        "conversation": request["conversation"],
        "state": "pending",
        "parked": False,
        "owner": None,
        "created": request["since"],
        "started": None,
        "stopped": None,
        "request": request,
    }


class Source:
    """Reads handles and acts on them."""

    def __init__(self, controls: Controls, changes: Changes) -> None:
        self.controls = controls
        self.changes = changes
        """Yields the uids of changed handles, or None, first and whenever everything may have changed. Raises
        `KeepholdError` if a server is gone."""

    async def page(self, state: str, search: str, after: str | None = None) -> tuple[list[Fact], str | None]:
        """Return handles in a state, the newest first, and the `after` of the next page."""
        oneshot = state not in ("stopped", "failed")  # stopped one-shot calls are never shown
        found = await self.controls.handles(
            state=state, oneshot=oneshot, search=search or None, sort="newest", after=after, limit=PAGE
        )
        return found["handles"], found["next"]

    async def failed(self, search: str) -> list[Fact]:
        """Return the handles that have failed last, in the time for which they are shown."""
        found = await self.controls.handles(state="failed", search=search or None, sort="stopped", limit=FAILED)
        return [fact for fact in found["handles"] if fact["stopped"] >= time.time() - FAILED_SECS]

    async def fact(self, uid: str) -> Fact | None:
        """Return everything of a handle; None if it was deleted."""
        try:
            return await self.controls.handle(uid)
        except KeepholdError as error:
            if error.code in ("handle_expired", "handle_not_found"):
                return None
            raise

    async def requests(self) -> list[dict[str, Any]]:
        """Return the open requests for permissions and results. A question is shown with its handle."""
        found, _ = await self.controls.requests()
        return [request for request in found if request["kind"] in ("permission", "result")]

    async def printed(self, fact: Fact, *, tail: int = _TAIL) -> AsyncIterator[str]:
        """Yield the end of its output, and new output until it stops, as safe text."""
        since = max(0, await self._printed_so_far(fact) - tail)
        readable: Readable = Plain()
        async with self.controls.talk(fact, frames.Want(uid=fact["uid"], want="follow", since=since)) as talk:
            async for _, payload in frames.all_frames(talk):
                if isinstance(payload, bytes):
                    yield readable.feed(payload).decode(errors="replace")
                elif isinstance(payload, frames.HandleStatus) and payload.cols and isinstance(readable, Plain):
                    readable = Rendered(payload.cols)
            yield readable.end().decode(errors="replace")

    async def last_lines(self, fact: Fact) -> AsyncIterator[str]:
        """Yield the last line of its output, whenever it changes."""
        held = ""
        async for text in self.printed(fact, tail=_LINE_TAIL):
            held = (held + text)[-_LINE_TAIL:]
            lines = [line.strip() for line in held.splitlines() if line.strip()]
            if lines:
                yield lines[-1]

    async def _printed_so_far(self, fact: Fact) -> int:
        async with self.controls.talk(fact, frames.Want(uid=fact["uid"], want="read", since=_END)) as talk:
            async for _, payload in frames.all_frames(talk):
                if isinstance(payload, frames.HandleStatus):
                    return payload.handle.output_bytes
        return 0

    async def answer(self, fact: Fact, value: str, *, secret: bool) -> None:
        """Answer the question of a handle as its user. Raise `KeepholdError` if the answer is refused."""
        answers = (fact.get("question") or {}).get("key") or ""
        want = frames.Want(uid=fact["uid"], want="send", input=value, secret=secret, answers=answers)
        async with self.controls.talk(fact, want) as talk:
            while (await talk.receive())[0] != frames.REPLY:
                pass


@asynccontextmanager
async def open_source(where: Where) -> AsyncIterator[Source]:
    """Open the server that is named, or the store."""
    if remote := served(where):
        async with remote:
            yield Source(remote, lambda: _remote_changes(remote))
        return
    from keephold.cli.store_control import Acting

    async with without_tools(where.store) as runtime:
        feed = Feed(runtime)
        await feed.open()
        try:
            yield Source(Acting(runtime), lambda: _stored_changes(feed))
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


class Model:
    """The handles and open requests that the table shows."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._facts: dict[str, Fact] = {}
        self._requests: list[Fact] = []
        self._next: dict[str, str | None] = {}  # the `after` of each state's next page; None: it was the last
        self.lines: dict[str, str] = {}
        """The last lines of output, by uid."""
        self.search = ""
        self.sort = SORTS[0]
        self.grouped = False
        self.over = False
        """Whether stopped handles are shown as well."""

    @property
    def more(self) -> bool:
        """Whether there is another page."""
        return any(self._next.values())

    def get(self, key: str) -> Fact | None:
        """Return the handle or the open request of a row."""
        if key.startswith("request:"):
            return next((fact for fact in self._requests if fact["uid"] == key), None)
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
        found |= {fact["uid"]: fact for fact in await self._source.failed(self.search) if fact["uid"] not in found}
        self._facts, self._next = found, places
        await self._read_requests()

    async def load_more(self) -> None:
        """Read one more page: of waiting handles first, then of live, then of stopped ones."""
        state = next(state for state, after in self._next.items() if after is not None)
        page, self._next[state] = await self._source.page(state, self.search, self._next[state])
        self._facts |= {fact["uid"]: fact for fact in page}

    async def read(self, changed: set[str]) -> None:
        """Read the changed handles again."""
        if len(changed) > _FEW:
            await self.load()
            return
        for uid in changed:
            fact = await self._source.fact(uid)
            if fact is None or not self._is_wanted(fact):
                self._facts.pop(uid, None)
            else:
                self._facts[uid] = fact
        await self._read_requests()

    async def _read_requests(self) -> None:
        requests = [request_fact(request) for request in await self._source.requests()]
        self._requests = [fact for fact in requests if matches(fact, self.search)]

    def _is_wanted(self, fact: Fact) -> bool:
        if not matches(fact, self.search):
            return False
        if fact["state"] != "stopped" or self.over:
            return True
        return fact["uid"] in self._facts or has_failed(fact)  # it was visible, so its end is shown

    # Showing

    def rows(self) -> list[Row]:
        now = time.time()
        if not self.over:
            faded = [uid for uid, fact in self._facts.items() if has_faded(fact, now)]
            for uid in faded:
                del self._facts[uid]
        facts = ordered(self._lines(), self.sort, grouped=self.grouped)
        return rows(facts, self.lines, now, grouped=self.grouped)

    def _lines(self) -> list[Fact]:
        """Return open requests and handles. A call that waits for a permission is both, and has one row."""
        requests, held = [], set()
        for fact in self._requests:
            handle = self._facts.get(fact["request"]["handle"] or "")
            if handle is not None and handle["state"] == "pending":
                held.add(handle["uid"])
            requests.append(fact if handle is None else {**fact, "id": handle["id"]})
        return [*requests, *(fact for uid, fact in self._facts.items() if uid not in held)]

    def snapshot(self) -> dict[str, object]:
        """Return the object of `--json`."""
        facts = ordered(self._facts.values(), self.sort, grouped=False)
        return {"handles": facts, "requests": [fact["request"] for fact in self._requests], "more": self.more}

    def summary(self) -> str:
        """Return the counts in one line."""
        asking = len(self._requests) + sum(fact["state"] == "waiting" for fact in self._facts.values())
        live = sum(fact["state"] != "stopped" for fact in self._facts.values())
        said = [f"{live}{'+' if self.more else ''} live", f"{asking} need{'s' * (asking == 1)} you"]
        failed = sum(has_failed(fact) for fact in self._facts.values())
        said += [f"{failed} failed"] if failed else []
        said.append(f"by {self.sort}" if self.sort != SORTS[0] else "urgent first")
        return " · ".join(said + ([f"/{self.search}"] if self.search else []))
