"""One handle in `keephold top`: its facts, and what it prints while it prints it.

The last lines of the handles that are to be seen in `keephold top`, asked of the processes that run them.

A handle is listened to while its row is on the screen. So however many run, only as many are listened to as there are
rows.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Log, Static

from keephold.cli.printing import duration, one_line, state_words, time_of_day
from keephold.cli.top_rows import Fact, latest
from keephold.cli.top_source import Source
from keephold.errors import KeepholdError

_LINES = 10_000
"""Of output that can be scrolled back to; `keephold logs` has all of it."""


class Detail(Screen[None]):
    """A handle's page. The table below goes on, and tells it of changes by `changed`."""

    CSS = """
    #facts { height: auto; max-height: 10; padding: 0 1; border-bottom: solid $accent; }
    Log { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("q", "app.pop_screen", "Back", show=False),
        Binding("a", "app.abort", "Abort"),
        Binding("r", "app.answer", "Answer"),
        Binding("t", "app.attach", "Attach"),
    ]

    def __init__(self, source: Source, fact: Fact) -> None:
        super().__init__()
        self._source = source
        self.fact = fact

    def compose(self) -> ComposeResult:
        yield Static(id="facts")
        yield Log(max_lines=_LINES, auto_scroll=True)
        yield Footer()

    def on_mount(self) -> None:
        self.tick()
        self.set_interval(1.0, self.tick)
        self.follow()

    def changed(self, fact: Fact) -> None:
        """Something about the handle is different now."""
        self.fact = fact
        self.tick()

    def tick(self) -> None:
        """Show the facts as they are now."""
        text = Text()
        for title, said in _lines(self.fact, time.time()):
            text.append(f"{title:<13}", style="bold")
            text.append(f"{one_line(said)}\n")
        self.query_one("#facts", Static).update(text)

    @work(exclusive=True)
    async def follow(self) -> None:
        log = self.query_one(Log)
        try:
            self.changed(await self._source.fact(self.fact["uid"]) or self.fact)
            async for text in self._source.printed(self.fact):
                log.write(text)
        except KeepholdError as error:
            log.write_line(f"({one_line(error.message)})")


def _lines(fact: Fact, now: float) -> Iterator[tuple[str, Any]]:
    yield "handle", f"{fact['id']}, of {fact['tool']}, in {fact['conversation']}"
    spent = (fact["stopped"] or now) - (fact["started"] or fact["created"])
    yield (
        "state",
        f"{state_words(fact, now)}, {duration(spent)} since {time_of_day(fact['started'] or fact['created'])}",
    )
    yield "uid", fact["uid"]
    if fact.get("arguments") is not None:
        yield "arguments", fact["arguments"]
    if fact["deadline"]:
        yield "deadline", time_of_day(fact["deadline"])
    if fact["owner"] == "gone":
        yield "owner", "gone, and no other process has gone on with it"
    said = latest(fact, "")
    if said:
        yield "asks" if fact.get("question") else "last", said
    outcome = fact.get("outcome")
    if outcome is not None and outcome.get("value") is not None:
        yield "result", outcome["value"]


class Glances:
    """Calls `told(uid, line)` with every new last line of what it was told to look at."""

    def __init__(self, source: Source, told: Callable[[str, str], None]) -> None:
        self._source = source
        self._told = told
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()
        """Those that have nothing to say: not asked again until something about them changes."""

    def look_at(self, facts: Iterable[Fact]) -> None:
        """These are to be seen, and no others."""
        seen = {fact["uid"]: fact for fact in facts if fact["state"] == "running" and not fact["parked"]}
        for uid in [uid for uid in self._listening if uid not in seen]:
            self._listening.pop(uid).cancel()
        for uid, fact in seen.items():
            if uid not in self._listening and uid not in self._silent:
                self._listening[uid] = asyncio.ensure_future(self._listen(fact))

    def forget(self, uids: Iterable[str] | None = None) -> None:
        """Something has changed about these, or about all: what could not be heard may be now."""
        if uids is None:
            self._silent.clear()
        else:
            self._silent.difference_update(uids)

    async def close(self) -> None:
        """Listen to none any more."""
        tasks = list(self._listening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, fact: Fact) -> None:
        uid = fact["uid"]
        try:
            async for line in self._source.last_lines(fact):
                self._told(uid, line)
        except KeepholdError:  # nobody runs it any more, or whoever does is not to be reached
            pass
        self._silent.add(uid)
        self._listening.pop(uid, None)
