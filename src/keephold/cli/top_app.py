"""The screens of `keephold top`: a live table of handles with keys that act on the one under the cursor, and the page
of one handle with its output.

One task listens for changes, one reads and draws. However much happens, it draws a few times a second, and reading
never takes more than a part of the time.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Log, Static

from keephold.cli.printing import duration, one_line, printable, state_words, time_of_day
from keephold.cli.top_dialogs import KeysScreen, TextScreen, YesNoScreen, answer_text, question_screen, request_screen
from keephold.cli.top_source import HEAD, SORTS, Fact, Model, Row, Source, latest, widths
from keephold.errors import KeepholdError
from keephold.text import isolated

_LINES = 10_000
"""Lines of output to scroll back to; `keephold logs` has all of it."""
_PAUSE = 0.2
"""Seconds between two drawings."""
_AGAIN_SECS = 1.0
"""Delay before a lost server is tried again."""
_KEYS = (
    ("Enter", "open the handle: its details and its output"),
    ("r", "answer its question, or decide its permission"),
    ("a", "abort it"),
    ("t", "take over its terminal; Ctrl-] detaches"),
    ("/", "show only handles with a text in their id, tool or uid"),
    ("s", "sort: urgent first, newest, oldest, by tool, by id"),
    ("g", "group by conversation"),
    ("e", "show stopped handles as well"),
    ("q", "quit"),
)
_OF_TABLE = ("filter", "sort", "group", "over", "keys", "quit")


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
    began = fact["started"] or fact["created"]
    spent = duration((fact["stopped"] or now) - began)
    yield "state", f"{state_words(fact, now)}, {spent} since {time_of_day(began)}"
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


def _keys(rows: Sequence[Row]) -> list[str]:
    return [row.key for row in rows]


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


class Table(DataTable[Text]):
    """A table in which Home and End move between rows, not columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open", key_display="⏎"),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]


class Top(App[None]):
    """The table of handles, those that need an answer first."""

    CSS = """
    #status { height: 1; background: $boost; padding: 0 1; }
    DataTable { height: 1fr; }
    AskScreen { align: center middle; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("g", "group", "Group"),
        Binding("e", "over", "Ended"),
        Binding("r", "answer", "Answer"),
        Binding("a", "abort", "Abort"),
        Binding("t", "attach", "Attach"),
    ]

    def __init__(self, source: Source, words: Sequence[str] = ()) -> None:
        """`words` are the options by which another command finds the same store or server."""
        super().__init__()
        self.source = source
        self.model = Model(source)
        self.words = words
        self.program = [sys.executable, "-P", "-m", "keephold"]  # starts another command
        self.paused = False  # another program has the terminal: draw nothing
        self._last_lines = LastLines(source, self._new_line)
        self._changed: set[str] | None = set()  # handles to be read again; None: all
        self._woken = asyncio.Event()
        self._trouble = ""
        self._shown: list[Row] = []
        self._widths: list[int] = []

    def compose(self) -> ComposeResult:
        yield Static(id="status")
        yield Table(cursor_type="row")
        yield Footer(compact=True)

    @property
    def table(self) -> Table:
        return self.screen_stack[0].query_one(Table)

    def on_mount(self) -> None:
        self.listen()
        self.keep_up()
        self.set_interval(1.0, self.draw)

    async def on_unmount(self) -> None:
        await self._last_lines.close()

    # Hearing and reading

    @work
    async def listen(self) -> None:
        while True:
            try:
                async for changed in self.source.changes():
                    self._trouble = ""
                    self._changed = None if changed is None or self._changed is None else self._changed | changed
                    self._woken.set()
            except KeepholdError as error:
                self._trouble = error.message
                self.draw()
            await asyncio.sleep(_AGAIN_SECS)

    @work
    async def keep_up(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            began = time.monotonic()
            changed, self._changed = self._changed, set()
            try:
                await (self.model.load() if changed is None else self.model.read(changed))
            except KeepholdError as error:
                self._trouble = error.message
                self._changed = None
            self._last_lines.retry(changed)
            self.draw()
            await asyncio.sleep(max(_PAUSE, 2 * (time.monotonic() - began)))

    def read_all(self) -> None:
        """Read everything again: the filter has changed."""
        self._changed = None
        self._woken.set()

    def _new_line(self, uid: str, line: str) -> None:
        self.model.lines[uid] = line
        self._woken.set()

    # Drawing

    def draw(self) -> None:
        """Show the model; write only what is different."""
        if self.paused or not self.is_running:
            return
        rows = self.model.rows()
        wanted = widths(rows, self.table.size.width or self.size.width)
        grown = any(new > old for new, old in zip(wanted, self._widths, strict=bool(self._widths)))
        if _keys(rows) != _keys(self._shown) or grown or sum(wanted) != sum(self._widths):
            self._widths = wanted
            self._rebuild(rows)
        else:
            self._update(rows)
        self._shown = rows
        self._status()
        self._follow_visible(rows)
        top = self.screen
        if isinstance(top, Detail):
            fact = self.model.get(top.fact["uid"])
            if fact is not None and fact is not top.fact:
                top.changed(top.fact | fact)

    def _rebuild(self, rows: list[Row]) -> None:
        table, before = self.table, self._under_cursor()
        at = table.cursor_row
        with self.batch_update():
            table.clear(columns=True)
            for title, width in zip(HEAD, self._widths, strict=True):
                table.add_column(title, width=width)
            for row in rows:
                table.add_row(*self._cells(row), key=row.key)
            if rows:
                keys = _keys(rows)
                table.move_cursor(row=keys.index(before) if before in keys else min(at, len(rows) - 1), animate=False)

    def _update(self, rows: list[Row]) -> None:
        for at, (row, before) in enumerate(zip(rows, self._shown, strict=True)):
            if row != before:
                for column, cell in enumerate(self._cells(row)):
                    self.table.update_cell_at(Coordinate(at, column), cell)

    def _cells(self, row: Row) -> list[Text]:
        return [
            Text(isolated(one_line(cell, width)), style=row.style, no_wrap=True)
            for cell, width in zip(row.cells, self._widths, strict=True)
        ]

    def _status(self) -> None:
        text = Text(f"{self.model.summary()} · {self.source.controls.place}", no_wrap=True, overflow="ellipsis")
        if self._trouble:
            text = Text(f"! {one_line(self._trouble)}", style="bold red", no_wrap=True, overflow="ellipsis")
        self.screen_stack[0].query_one("#status", Static).update(text)

    def _follow_visible(self, rows: list[Row]) -> None:
        first = int(self.table.scroll_offset.y)
        seen = [self.model.get(row.key) for row in rows[first : first + self.size.height]]
        self._last_lines.follow([fact for fact in seen if fact is not None])

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.draw)

    # The cursor

    def _under_cursor(self) -> str:
        at = self.table.cursor_row
        return self._shown[at].key if 0 <= at < len(self._shown) else ""

    @property
    def chosen(self) -> Fact | None:
        """The handle or the open request that the keys act on."""
        if isinstance(self.screen, Detail):
            return self.model.get(self.screen.fact["uid"]) or self.screen.fact
        return self.model.get(self._under_cursor())

    def on_data_table_row_highlighted(self, event: "DataTable.RowHighlighted") -> None:
        if self.model.more and event.cursor_row >= len(self._shown) - 1 > 0:
            self.load_more()

    def on_data_table_row_selected(self, event: "DataTable.RowSelected") -> None:
        fact = self.chosen
        if fact is not None and not fact.get("request"):
            self.push_screen(Detail(self.source, fact))
        elif fact is not None:
            self.action_answer()

    @work(exclusive=True, group="more")
    async def load_more(self) -> None:
        try:
            await self.model.load_more()
        except KeepholdError as error:
            self._trouble = error.message
        self.draw()

    # Keys that change what is shown

    def action_sort(self) -> None:
        self.model.sort = SORTS[(SORTS.index(self.model.sort) + 1) % len(SORTS)]
        self.draw()

    def action_group(self) -> None:
        self.model.grouped = not self.model.grouped
        self.draw()

    def action_over(self) -> None:
        self.model.over = not self.model.over
        self.read_all()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of the table while a handle's page is shown."""
        return action not in _OF_TABLE or not isinstance(self.screen, Detail)

    # Keys that act on the chosen handle

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a short message for a moment."""
        self.notify(printable(text), severity="error" if bad else "information", markup=False)

    @work(exclusive=True, group="acting")
    async def action_filter(self) -> None:
        asked = "Show only handles whose id, tool or uid has this in it. Nothing: all."
        said = await self.push_screen_wait(TextScreen(asked, value=self.model.search, does="show these", prompts=False))
        if said is not None:
            self.model.search = said.strip()
            self.read_all()

    @work(exclusive=True, group="acting")
    async def action_keys(self) -> None:
        await self.push_screen_wait(KeysScreen(_KEYS))

    @work(exclusive=True, group="acting")
    async def action_abort(self) -> None:
        fact = self.chosen
        if fact is None or fact.get("request"):
            return
        if fact["state"] == "stopped":
            self.say(f"{one_line(fact['id'])} has stopped")
            return
        id, tool, place = (isolated(one_line(fact[key])) for key in ("id", "tool", "conversation"))
        asked = f"Abort {id} of {tool}, in {place}?"
        if await self.push_screen_wait(YesNoScreen(asked)):
            try:
                await self.source.controls.abort(fact["uid"])
                self.say(f"aborted {one_line(fact['id'])}")
            except KeepholdError as error:
                self.say(error.message, bad=True)

    @work(exclusive=True, group="acting")
    async def action_answer(self) -> None:
        fact = self.chosen
        if fact is None:
            return
        if fact.get("request"):
            await self._decide(fact["request"])
        elif fact.get("question"):
            await self._answer(fact)
        else:
            self.say(f"{one_line(fact['id'])} asks nothing")

    async def _answer(self, fact: Fact) -> None:
        question, problem = fact["question"], ""
        while True:
            said = await self.push_screen_wait(question_screen(fact, problem))
            if said is None:
                return
            try:
                await self.source.answer(fact, answer_text(question, said), secret=question["secret"])
                self.say(f"answered {one_line(fact['id'])}")
                return
            except KeepholdError as error:
                if error.code != "bad_answer":
                    self.say(error.message, bad=True)
                    return
                problem = error.message

    async def _decide(self, request: dict[str, Any]) -> None:
        said = await self.push_screen_wait(request_screen(request))
        if said is None:
            return
        try:
            decision = {"decision": "approve" if said else "deny", "digest": request["digest"]}
            reply = await self.source.controls.decide(request["id"], decision)
            done = f"{'approved' if said else 'denied'} {one_line(request['tool'])}"
            taken = reply["status"] == "taken"
            self.say(done if taken else str(reply["problem"]), bad=not taken)
        except KeepholdError as error:
            self.say(error.message, bad=True)
        self.read_all()

    @work(exclusive=True, group="acting")
    async def action_attach(self) -> None:
        fact = self.chosen
        if fact is None or fact.get("request"):
            return
        words = [*self.program, "attach", *self.words, "--", fact["uid"]]
        self.paused = True
        try:
            with self.suspend():
                process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
                _, errors = await process.communicate()
        finally:
            self.paused = False
        self.refresh(layout=True)
        self.draw()
        message = errors.decode(errors="replace").strip().removeprefix("Error: ")
        if message:
            self.say(message, bad=process.returncode != 0)
