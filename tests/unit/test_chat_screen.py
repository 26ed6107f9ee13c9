"""A chat's screen, on a real terminal's other end: what an emulator shows is what was said, and below it what runs."""

import asyncio
import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keephold.cli.chat_lines import END, Piece
from keephold.cli.chat_screen import ChatScreen
from keephold.cli.keyboard import Tty
from keephold.tools.terminal.emulator import open_emulator

TALL = 120
_LETTERS = "abc dé漢字👍\t"


class Watched:
    """A screen and who looks at it."""

    def __init__(self, columns: int) -> None:
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (TALL, columns))
        os.set_blocking(slave, False)
        os.set_blocking(self._master, False)
        self.columns = columns
        self.live: list[Piece] = []
        self.tty = Tty(slave)
        self.screen = ChatScreen(self.tty, lambda: self.live)
        self.sent = b""

    def look(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                self.sent += data
        except BlockingIOError:
            pass

    def shown(self) -> list[str]:
        self.look()
        return as_shown(self.sent, self.columns)

    def close(self) -> None:
        self.tty.close()
        os.close(self._master)


def as_shown(data: bytes, columns: int) -> list[str]:
    emulator = open_emulator(TALL, columns, lambda _: None, kind="ghostty")
    try:
        emulator.feed(data)
        lines = [line.rstrip() for line in emulator.screen().lines]
    finally:
        emulator.close()
    while lines and not lines[-1]:
        lines.pop()
    return lines


@contextmanager
def watched(columns: int = 40) -> Iterator[Watched]:
    somebody = Watched(columns)
    try:
        yield somebody
    finally:
        somebody.close()


class Paper:
    """What was said, as it should stand there."""

    def __init__(self) -> None:
        self.text = ""
        self._held = ""

    def say(self, piece: Piece) -> None:
        within = bool(self.text) and not self.text.endswith("\n")
        if piece.kind == "line":
            if within:
                self._held += f"{piece.text}\n"
            else:
                self.text += f"{piece.text}\n"
            return
        flow = "\n" if piece.kind == "end" and within else piece.text
        done, newline, rest = flow.rpartition("\n")
        self.text += done + newline
        if newline:
            self.text, self._held = self.text + self._held, ""
        self.text += rest

    def whole(self) -> str:
        """All of it, and no row begun."""
        self.say(END)
        return self.text


_FLOWS = st.text(_LETTERS + "\n", min_size=1, max_size=30).map(lambda text: Piece("answer", text))
_LINES = st.text("xyz", min_size=1, max_size=5).map(lambda text: Piece.line(f"✓ {text}", "green"))
_ROWS = st.lists(st.text("uvw漢", max_size=60).map(lambda text: Piece.line(f"● {text}", "dim")), max_size=4)
_TYPED = st.text("typed ", max_size=50).map(lambda text: ("typed", text))


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(8, 40), st.lists(st.one_of(_FLOWS, _FLOWS, _LINES, st.just(END), _ROWS, _TYPED), max_size=25))
def test_G1_what_is_said_stands_there_once_and_in_order(columns: int, steps: list[object]) -> None:
    async def run(somebody: Watched) -> None:
        paper = Paper()
        with somebody.screen as screen:
            for step in steps:
                if isinstance(step, Piece):
                    screen.show(step)
                    paper.say(step)
                elif isinstance(step, list):
                    somebody.live = step
                else:
                    assert isinstance(step, tuple)
                    screen.typed.text, screen.typed.at = step[1], len(step[1])
                    screen.typing()
                screen.paint()
                somebody.look()
            assert somebody.shown()[-1].startswith(">")
        expected = paper.whole().replace("\t", "    ").replace("\n", "\r\n").encode()
        assert somebody.shown() == as_shown(expected, columns)  # nothing of what runs is left

    with watched(columns) as somebody:
        asyncio.run(run(somebody))


async def test_what_runs_stands_below_and_the_line_that_is_typed_last() -> None:
    with watched() as somebody:
        with somebody.screen as screen:
            somebody.live = [Piece.line("● build  1s"), Piece.line("x" * 100)]
            screen.typed.text, screen.typed.at = "hello", 5
            screen.show(Piece("answer", "Half a "))
            screen.paint()
            assert somebody.shown() == ["Half a", "● build  1s", "x" * 38 + "…", "> hello"]
            screen.show(Piece.line("✓ other  0.1s"))
            screen.show(Piece("answer", "line"))
            screen.paint()
            assert somebody.shown()[0] == "Half a line"
            screen.show(Piece("answer", ".\n"))
            somebody.live = []
            screen.paint()
            assert somebody.shown() == ["Half a line.", "✓ other  0.1s", "> hello"]
        assert somebody.shown() == ["Half a line.", "✓ other  0.1s"]


async def test_nothing_is_written_while_nothing_changes() -> None:
    with watched() as somebody, somebody.screen as screen:
        somebody.live = [Piece.line("● build  1s")]
        screen.paint()
        somebody.look()
        before = len(somebody.sent)
        for _ in range(3):
            screen.paint()
        somebody.look()
        assert len(somebody.sent) == before


async def test_a_terminal_that_is_lent_is_left_alone_and_what_is_said_comes_after() -> None:
    with watched() as somebody, somebody.screen as screen:
        somebody.live = [Piece.line("● build  1s")]
        screen.show(Piece("answer", "Said before"))
        screen.paint()
        async with screen.lent():
            somebody.look()
            alone = len(somebody.sent)
            screen.show(Piece.line("Said meanwhile"))
            screen.paint()
            screen.typing()
            somebody.look()
            assert len(somebody.sent) == alone
            assert somebody.shown() == ["Said before"]
            somebody.tty.write("A prompt\n")
        assert somebody.shown() == ["Said before", "A prompt", "Said meanwhile", "● build  1s", ">"]


@pytest.mark.parametrize(("name", "coloured"), [("NO_COLOR", False), ("OTHER", True)])
async def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch, name: str, coloured: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, "1")
    with watched() as somebody, somebody.screen as screen:
        screen.show(Piece.line("Error", "red"))
        screen.paint()
        somebody.look()
        assert (b"\x1b[31mError\x1b[0m" in somebody.sent) is coloured
