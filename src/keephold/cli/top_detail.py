"""One handle in `keephold top`: its details and its output, live; and the last lines of the visible handles, which
their processes send only while their rows are on the screen."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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
"""Lines of output to scroll back to; `keephold logs` has all of it."""


class Detail(Screen[None]):
    """A handle's page. The table below keeps running, and calls `changed`."""

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
        self.fact = fact
        self.tick()

    def tick(self) -> None:
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
    if fact["owner"] == "gone" and not fact.get("kept"):
        yield "owner", "gone, and no other process has resumed it"
    said = latest(fact, "")
    if said:
        yield "asks" if fact.get("question") else "last", said
    outcome = fact.get("outcome")
    if outcome is not None and outcome.get("value") is not None:
        yield "result", outcome["value"]


class LastLines:
    """Calls `on_line(uid, line)` with every new last line of the followed handles."""

    def __init__(self, source: Source, on_line: Callable[[str, str], None]) -> None:
        self._source = source
        self._on_line = on_line
        self._following: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()  # have no output: not asked again before `retry`

    def follow(self, facts: Iterable[Fact]) -> None:
        """Follow these handles, and no others."""
        seen = {fact["uid"]: fact for fact in facts if fact["state"] == "running" and not fact["parked"]}
        for uid in [uid for uid in self._following if uid not in seen]:
            self._following.pop(uid).cancel()
        for uid, fact in seen.items():
            if uid not in self._following and uid not in self._silent:
                self._following[uid] = asyncio.ensure_future(self._follow(fact))

    def retry(self, uids: Iterable[str] | None) -> None:
        """Allow these handles, or all, to be asked again: they have changed."""
        self._silent.difference_update(self._silent.copy() if uids is None else uids)

    async def close(self) -> None:
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, fact: Fact) -> None:
        uid = fact["uid"]
        with suppress(KeepholdError):  # no process runs it any more, or its process cannot be reached
            async for line in self._source.last_lines(fact):
                self._on_line(uid, line)
        self._silent.add(uid)
        self._following.pop(uid, None)
