"""What `keephold top` has read: pages of handles, kept as events say that they change. Nothing of the terminal is here.

Only so much is read as is asked for: a page of what waits for a person, a page of what is live, and the next ones when
somebody goes there. A hundred thousand handles that have stopped cost nothing until they are wanted.
"""

import time

from keephold.cli.top_rows import FADES_SECS, SORTS, Fact, Row, matches, need_fact, ordered, rows
from keephold.cli.top_source import Source

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
