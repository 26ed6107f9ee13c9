"""The screen of `keephold top`: a live table of handles, and keys to do something about the one under the cursor.

One task hears what has changed, one reads it and draws. However much happens, it is drawn a few times a second, and
reading never takes more than a part of the time.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable, Footer, Static

from keephold.cli.printing import one_line
from keephold.cli.top_actions import Acting
from keephold.cli.top_detail import Detail, Glances
from keephold.cli.top_rows import HEAD, SORTS, Fact, Row, widths
from keephold.cli.top_source import Model, Source
from keephold.errors import KeepholdError

_PAUSE = 0.2
"""Seconds between two drawings."""
_AGAIN_SECS = 1.0
"""A server that is gone is tried again after this time."""
_OF_TABLE = ("filter", "sort", "group", "over", "keys", "quit")


class Table(DataTable[Text]):
    """A table of rows: Home and End are about rows, not about columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open", key_display="⏎"),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]


class Top(Acting, App[None]):
    """What goes on, and what needs a person first."""

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
        self.paused = False
        """Another program has the terminal: nothing is drawn."""
        self._glances = Glances(source, self._heard_line)
        self._changed: set[str] | None = set()
        """Handles to be read again; None: all."""
        self._woken = asyncio.Event()
        self._trouble = ""
        self._keys: list[str] = []
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
        await self._glances.close()

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
            if changed is None:
                self._glances.forget()
            else:
                self._glances.forget(changed)
            self.draw()
            await asyncio.sleep(max(_PAUSE, 2 * (time.monotonic() - began)))

    def look_again(self) -> None:
        """What is wanted is something else now: read it."""
        self._changed = None
        self._woken.set()

    def _heard_line(self, uid: str, line: str) -> None:
        self.model.lines[uid] = line
        self._woken.set()

    # Drawing

    def draw(self) -> None:
        """Show what is known; only what is different is written."""
        if self.paused or not self.is_running:
            return
        rows = self.model.rows()
        keys = [row.key for row in rows]
        wanted = widths(rows, self.table.size.width or self.size.width)
        grown = any(new > old for new, old in zip(wanted, self._widths, strict=bool(self._widths)))
        if keys != self._keys or grown or sum(wanted) != sum(self._widths):
            self._widths = wanted
            self._rebuild(rows)
        else:
            self._update(rows)
        self._keys, self._shown = keys, rows
        self._status()
        self._follow_what_is_seen(rows)
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
                keys = [row.key for row in rows]
                table.move_cursor(row=keys.index(before) if before in keys else min(at, len(rows) - 1), animate=False)

    def _update(self, rows: list[Row]) -> None:
        for at, (row, before) in enumerate(zip(rows, self._shown, strict=True)):
            if row != before:
                for column, cell in enumerate(self._cells(row)):
                    self.table.update_cell_at(Coordinate(at, column), cell)

    def _cells(self, row: Row) -> list[Text]:
        return [
            Text(one_line(cell, width), style=row.style, no_wrap=True)
            for cell, width in zip(row.cells, self._widths, strict=True)
        ]

    def _status(self) -> None:
        text = Text(f"{self.model.summary()} · {self.source.place}", no_wrap=True, overflow="ellipsis")
        if self._trouble:
            text = Text(f"! {one_line(self._trouble)}", style="bold red", no_wrap=True, overflow="ellipsis")
        self.screen_stack[0].query_one("#status", Static).update(text)

    def _follow_what_is_seen(self, rows: list[Row]) -> None:
        first = int(self.table.scroll_offset.y)
        seen = [self.model.get(row.key) for row in rows[first : first + self.size.height]]
        self._glances.look_at([fact for fact in seen if fact is not None])

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.draw)

    # The cursor

    def _under_cursor(self) -> str:
        at = self.table.cursor_row
        return self._keys[at] if 0 <= at < len(self._keys) else ""

    @property
    def chosen(self) -> Fact | None:
        """The handle, or the need, that keys are about."""
        if isinstance(self.screen, Detail):
            return self.model.get(self.screen.fact["uid"]) or self.screen.fact
        return self.model.get(self._under_cursor())

    def on_data_table_row_highlighted(self, event: "DataTable.RowHighlighted") -> None:
        if self.model.more and event.cursor_row >= len(self._keys) - 1 > 0:
            self.load_more()

    def on_data_table_row_selected(self, event: "DataTable.RowSelected") -> None:
        fact = self.chosen
        if fact is not None and not fact.get("need"):
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
        self.look_again()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What is about the table is for when it is to be seen."""
        return action not in _OF_TABLE or not isinstance(self.screen, Detail)

    def program(self) -> list[str]:
        """How another command of keephold is started."""
        return [sys.executable, "-m", "keephold"]
