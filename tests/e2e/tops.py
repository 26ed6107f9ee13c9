"""The screen of `keephold top`, as a test sees it and types at it: by textual's own Pilot."""

import asyncio
from collections.abc import Callable

import pytest
from tests.patience import PATIENCE
from textual.pilot import Pilot
from textual.widgets import Static

from keephold.cli.top_app import Top
from keephold.cli.top_dialogs import AskScreen


class Watched:
    """The screen. Nothing of it is awaited by time: `until` waits for what is to be seen."""

    def __init__(self, pilot: "Pilot[None]") -> None:
        self.pilot = pilot

    @property
    def app(self) -> Top:
        assert isinstance(self.pilot.app, Top)
        return self.pilot.app

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        table = self.app.table
        return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]

    @property
    def ids(self) -> list[str]:
        return [row[1] for row in self.rows]

    def row(self, id: str) -> list[str]:
        return next((row for row in self.rows if row[1] == id), [""] * 6)

    def fits(self, width: int) -> bool:
        """Whether the table is drawn for so many columns, and is no wider."""
        table = self.app.table
        columns = table.ordered_columns
        return table.size.width == width and 0 < sum(column.get_render_width(table) for column in columns) <= width

    @property
    def status(self) -> str:
        return str(self.app.screen_stack[0].query_one("#status", Static).render())

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def choose(self, id: str) -> None:
        """Move the cursor to a row."""
        await self.until(lambda: id in self.ids)
        self.app.table.move_cursor(row=self.ids.index(id))
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until that is so."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            pytest.fail(f"it did not come true; {self.status}\n{self.rows}\n{self.app.screen}")

    async def asked(self) -> AskScreen:
        """The box that asks something."""
        await self.until(lambda: isinstance(self.app.screen, AskScreen) and self.app.screen.query("#asked"))
        box = self.app.screen
        assert isinstance(box, AskScreen)
        await self.until(lambda: box.listening)
        return box

    async def answered(self) -> None:
        await self.until(lambda: not isinstance(self.app.screen, AskScreen))
