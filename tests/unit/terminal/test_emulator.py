"""Screens: what a person would see, for what programs really print and for what none should."""

import gc
import os
import sys
import unicodedata
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soak import tries
from tests.unit.terminal.noise import noise
from tests.unit.terminal.recorded import LESS, LS, VIM, VIM_QUITS

from keephold.tools.base import Screen
from keephold.tools.terminal.emulator import SCROLLBACK, Emulator, Kind, open_emulator

KINDS: tuple[Kind, ...] = ("ghostty", "line")


@contextmanager
def emulator(
    rows: int = 5, cols: int = 20, kind: Kind = "ghostty", reply: Callable[[bytes], None] = lambda _: None
) -> Iterator[Emulator]:
    opened = open_emulator(rows, cols, reply, kind=kind)
    try:
        yield opened
    finally:
        opened.close()


def screen(data: bytes, rows: int = 5, cols: int = 20) -> Screen:
    with emulator(rows, cols) as shown:
        shown.feed(data)
        return shown.screen()


def shown(data: bytes, rows: int = 5, cols: int = 20) -> list[str]:
    """The rows of a screen up to the last that is not blank."""
    lines = list(screen(data, rows, cols).lines)
    assert len(lines) == rows
    while lines and not lines[-1]:
        lines.pop()
    return lines


# --- programs


def test_a_coloured_ls() -> None:
    assert shown(LS, 8, 40) == [
        "total 8",
        "drwxr-xr-x 2 4096  d/",
        "lrwxrwxrwx 1    9  link -> notes.txt",
        "-rw-r--r-- 1   14  notes.txt",
        "-rwxr-xr-x 1    0  run.sh*",
    ]


def test_vim_draws_edits_scrolls_and_leaves() -> None:
    replies: list[bytes] = []
    with emulator(6, 30, reply=replies.append) as terminal:
        terminal.feed(b"$ vim notes.txt\r\n")
        terminal.feed(VIM)
        seen = terminal.screen()
        assert seen.lines == ("  1 hello 你one", "  2 three", "~", "~", "~", ":set number")
        assert (seen.cursor, seen.alternate, seen.scrollback) == ((2, 5), True, 0)
        assert (terminal.alternate, terminal.application_keys) == (True, True)
        assert b"".join(replies).startswith(b"\x1b[2;2R")  # vim asks how wide its ▽ came out
        terminal.feed(VIM_QUITS)
        seen = terminal.screen()
        assert seen.lines == ("$ vim notes.txt", "", "", "", "", "")
        assert (seen.cursor, seen.alternate) == ((2, 1), False)
        assert (terminal.alternate, terminal.application_keys) == (False, False)


def test_less_pages_and_searches() -> None:
    assert shown(LESS) == ["line 15", "line 16", "line 17", "line 18", ":"]


# --- what terminals do


def test_wide_characters_take_two_columns() -> None:
    seen = screen("你好, 世界".encode() + b"\x1b[1;3Hx", 2, 20)
    assert seen.lines == ("你x , 世界", "")
    assert seen.cursor == (1, 4)
    assert shown("一二三四五".encode(), 3, 5) == ["一二", "三四", "五"]  # a half does not fit into a row


def test_emoji_and_marks_belong_to_their_character() -> None:
    seen = screen("e\u0301 👍🏽 ok".encode())
    assert seen.lines[0] == "e\u0301 👍🏽 ok"
    assert shown("a👩\u200d🚀b".encode())[0] == "a👩\u200d🚀b"


def test_tabs_go_to_the_next_of_eight_columns() -> None:
    assert shown(b"a\tb\tc\r\n12345678\tx") == ["a       b       c", "12345678        x"]


def test_long_lines_wrap_and_are_wrapped_anew_when_the_width_changes() -> None:
    with emulator(4, 10) as terminal:
        terminal.feed(b"0123456789abcdefghij!\r\n$ ")
        assert terminal.screen().lines == ("0123456789", "abcdefghij", "!", "$")
        terminal.resize(4, 30)
        seen = terminal.screen()
        assert seen.lines == ("0123456789abcdefghij!", "$", "", "")
        assert (seen.rows, seen.cols, seen.cursor) == (4, 30, (2, 3))
        terminal.resize(2, 7)
        seen = terminal.screen()
        assert seen.lines == ("efghij!", "$")
        assert terminal.scrollback(9) == ("0123456", "789abcd")


def test_a_region_scrolls_by_itself() -> None:
    data = b"top\r\nb\r\nc\r\nd\r\nbottom\x1b[2;4r\x1b[4;1H\nnew\x1b[2;1H\x1bM\x1bMup\x1b[r"
    assert shown(data) == ["top", "up", "", "c", "bottom"]


def test_lines_are_inserted_deleted_and_erased() -> None:
    assert shown(b"a\r\nb\r\nc\x1b[2;1H\x1b[Lnew\x1b[1;1H\x1b[M") == ["new", "b", "c"]
    assert shown(b"abcdef\x1b[1;3H\x1b[Kx\x1b[2;1Hgone\x1b[2K\x1b[3;1Hmore\x1b[1;2H\x1b[J") == ["a"]


def test_the_title_is_that_of_the_last_sequence_without_controls() -> None:
    assert screen(b"\x1b]0;one\x07\x1b]2;two \xe2\x9c\x93\x1b\\").title == "two ✓"
    assert screen(b"x").title == ""


def test_the_cursor_counts_from_one() -> None:
    assert screen(b"").cursor == (1, 1)
    assert screen(b"\x1b[3;7H").cursor == (3, 7)
    assert screen(b"01234567890123456789").cursor == (1, 20)  # the row is full; the next character wraps


def test_cursor_keys_have_an_application_form() -> None:
    with emulator() as terminal:
        heard = []
        for data in (b"x", b"\x1b[?1h", b"y", b"\x1b[?1l"):
            terminal.feed(data)
            heard.append(terminal.application_keys)
        assert heard == [False, True, True, False]


def test_del_has_no_glyph() -> None:
    assert shown(b"a\x7fb\x7f") == ["a b"]


def test_a_program_may_ask_for_another_width() -> None:
    seen = screen(b"\x1b[?40h\x1b[?3h" + b"x" * 132)
    assert (seen.lines[0], seen.cols, seen.cursor) == ("x" * 132, 132, (1, 132))


# --- scrollback


def test_the_scrollback_is_the_last_lines_above_the_screen_oldest_first() -> None:
    with emulator(3, 20) as terminal:
        terminal.feed(b"".join(b"line %d\r\n\r\n" % number for number in range(1, 6)))
        assert terminal.screen().lines == ("line 5", "", "")
        assert terminal.screen().scrollback == 8
        assert terminal.scrollback(3) == ("", "line 4", "")
        assert terminal.scrollback(0) == terminal.scrollback(-1) == ()
        assert terminal.scrollback(100)[:3] == ("line 1", "", "line 2")
        assert len(terminal.scrollback(100)) == 8
        terminal.feed(b"\x1b[?1049h")
        assert (terminal.scrollback(3), terminal.screen().scrollback) == ((), 0)
        terminal.feed(b"\x1b[?1049l")
        assert len(terminal.scrollback(100)) == 8


@pytest.mark.parametrize("cols", [20, 80, 300])
def test_thousands_of_lines_are_kept_and_no_more_than_promised(cols: int) -> None:
    with emulator(24, cols) as terminal:
        terminal.feed(b"".join(b"line %d\r\n" % number for number in range(30_000)))
        lines = terminal.scrollback(10**9)
        assert 5_000 < len(lines) <= SCROLLBACK
        assert len(lines) == terminal.screen().scrollback
        assert lines[-1] == "line 29976" and lines[0] == f"line {29977 - len(lines)}"


# --- replies


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_asks_is_answered_before_feeding_returns(kind: Kind) -> None:
    replies: list[bytes] = []
    with emulator(kind=kind, reply=replies.append) as terminal:
        terminal.feed(b"ab\x1b[6n\x1b[5")
        assert b"".join(replies) == b"\x1b[1;3R"
        replies.clear()
        terminal.feed(b"n")
        assert b"".join(replies) == b"\x1b[0n"
        replies.clear()
        terminal.feed(b"\x1b[c")
        assert b"".join(replies).startswith(b"\x1b[?") and b"".join(replies).endswith(b"c")


def test_a_reply_may_feed_the_terminal_that_replies() -> None:
    with emulator(reply=lambda data: terminal.feed(data.replace(b"\x1b", b"^"))) as terminal:
        terminal.feed(b"x\x1b[6n")
        assert terminal.screen().lines[0] == "x^[1;2R"


def test_neither_titles_nor_the_clipboard_can_be_asked_for() -> None:
    replies: list[bytes] = []
    with emulator(reply=replies.append) as terminal:
        terminal.feed(b"\x1b]2;rm -rf\x07\x1b[21t\x1b[20t\x1b]52;c;?\x07\x1b_Gi=1,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\")
        assert replies == []


# --- anything at all


@pytest.mark.parametrize("kind", KINDS)
@given(data=noise, size=st.tuples(st.integers(1, 30), st.integers(1, 90)), cut=st.integers(0, 400))
@settings(max_examples=tries(150, soak=300))
def test_nothing_a_program_prints_makes_it_raise(kind: Kind, data: bytes, size: tuple[int, int], cut: int) -> None:
    with emulator(*size, kind=kind) as terminal:
        terminal.feed(data[:cut])
        terminal.screen()
        terminal.resize(*size[::-1])
        terminal.feed(data[cut:])
        seen = terminal.screen()
        assert len(seen.lines) == seen.rows
        assert 1 <= seen.cursor[0] <= seen.rows and 1 <= seen.cursor[1] <= seen.cols
        assert seen.alternate == terminal.alternate
        for line in (*seen.lines, *terminal.scrollback(SCROLLBACK), seen.title):
            assert not any(unicodedata.category(character) == "Cc" for character in line.replace("\t", ""))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [LS, VIM + VIM_QUITS, VIM, LESS], ids=["ls", "vim, left", "vim", "less"])
def test_it_does_not_matter_where_the_data_is_cut(kind: Kind, data: bytes) -> None:
    with emulator(6, 30, kind) as whole:
        whole.feed(data)
        expected = whole.screen()
    for cut in range(len(data)):
        with emulator(6, 30, kind) as terminal:
            terminal.feed(data[:cut])
            terminal.feed(data[cut:])
            assert terminal.screen() == expected, cut


def test_a_string_that_never_ends_takes_no_memory() -> None:
    for begin in (b"\x1b]52;c;", b"\x1b]0;", b"\x1bP", b"\x1b_G", b"\x1b["):
        before = _resident()
        with emulator() as terminal:
            terminal.feed(begin)
            for _ in range(24):
                terminal.feed(b"A" * (1 << 20))
            assert _resident() - before < 12 << 20, begin


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- opening and closing


def test_without_the_package_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulator(kind="auto") as terminal:
        assert terminal.screen().emulator == "ghostty"
    monkeypatch.setitem(sys.modules, "pyghostty", None)
    with emulator(kind="auto") as terminal:
        assert terminal.screen().emulator == "line"
    with pytest.raises(ImportError):
        open_emulator(5, 20, lambda _: None, kind="ghostty")


@pytest.mark.parametrize("kind", KINDS)
def test_closing_frees_and_twice_is_harmless(kind: Kind) -> None:
    class Reply:
        def __call__(self, data: bytes) -> None: ...

    reply = Reply()
    gone = weakref.ref(reply)
    terminal = open_emulator(5, 20, reply, kind=kind)
    terminal.feed(b"x\r\n" * 100)
    terminal.close()
    terminal.close()
    del reply, terminal
    gc.collect()
    assert gone() is None
