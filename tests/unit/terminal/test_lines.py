"""Line mode: honest about what it is, and right about lines."""

import tracemalloc

from tests.unit.terminal.recorded import BASH_EDITS, LS, VIM, VIM_QUITS

from keephold.tools.terminal.emulator import SCROLLBACK
from keephold.tools.terminal.lines import LineEmulator


def lines(*data: bytes, rows: int = 5, cols: int = 20) -> LineEmulator:
    emulator = LineEmulator(rows, cols, lambda _: None)
    for piece in data:
        emulator.feed(piece)
    return emulator


def test_it_says_what_it_is_and_shows_the_last_lines_as_long_as_they_are() -> None:
    seen = lines(LS, rows=4).screen()
    assert seen.emulator == "line"
    assert seen.lines == (
        "lrwxrwxrwx 1    9  link -> notes.txt",
        "-rw-r--r-- 1   14  notes.txt",
        "-rwxr-xr-x 1    0  run.sh*",
        "",
    )
    assert (seen.rows, seen.cols, seen.cursor, seen.scrollback) == (4, 20, (4, 1), 2)
    assert lines(b"a\r\nb").screen().lines == ("a", "b", "", "", "")


def test_what_moves_within_a_line_is_followed_over_pieces() -> None:
    pieces = [BASH_EDITS[at : at + 1] for at in range(len(BASH_EDITS))]
    assert lines(*pieces, cols=80).screen().lines[:3] == ("$ ehko hi!", "bash: ehko: command not found", "$")
    assert lines(b"10%", b"\r20%", b"\r\x1b", b"[Kdone").screen().lines[0] == "done"


def test_of_a_full_screen_program_it_says_only_that_one_runs() -> None:
    emulator = lines(b"$ vim notes.txt\r\n", VIM, rows=3)
    seen = emulator.screen()
    assert seen.alternate and emulator.alternate
    assert "full-screen program" in seen.lines[0]
    assert "pip install 'keephold[terminal]'" in seen.lines[1]
    assert (len(seen.lines), seen.scrollback, emulator.scrollback(5)) == (3, 0, ())
    emulator.feed(VIM_QUITS + b"$ ")
    assert emulator.screen().lines == ("$ vim notes.txt", "$", "")
    assert lines(b"\x1b[?47h", rows=1).screen().lines == (seen.lines[0],)


def test_all_three_modes_show_the_alternate_screen_and_a_reset_leaves_it() -> None:
    for mode in (b"47", b"1047", b"1049", b"25;1049"):
        assert lines(b"\x1b[?%bh" % mode).alternate
        assert not lines(b"\x1b[?%bh\x1b[?%bl" % (mode, mode)).alternate
        assert not lines(b"\x1b[?%bh\x1bc" % mode).alternate
    assert not lines(b"\x1b[?1048h\x1b[?25h\x1b[1049h").alternate


def test_title_and_keys_are_heard_also_in_pieces() -> None:
    emulator = lines(b"\x1b]0;first\x07", b"\x1b]2;se", b"cond \xe2", b"\x9c\x93\x1b", b"\\", b"\x1b[?1", b"h")
    assert emulator.screen().title == "second ✓"
    assert emulator.application_keys
    emulator.feed(b"\x1b]1;an icon\x07\x1b[?1l")
    assert emulator.screen().title == "second ✓"
    assert not emulator.application_keys


def test_the_scrollback_is_what_is_above_the_last_lines() -> None:
    emulator = lines(*(b"line %d\r\n" % number for number in range(1, 9)), rows=3)
    assert emulator.screen().lines == ("line 7", "line 8", "")
    assert emulator.scrollback(2) == ("line 5", "line 6")
    assert emulator.scrollback(99) == tuple(f"line {number}" for number in range(1, 7))
    assert emulator.scrollback(0) == ()
    emulator.resize(2, 20)
    assert emulator.screen().lines == ("line 8", "")
    emulator.feed(b"\n" * 100_000)
    assert emulator.screen().scrollback == len(emulator.scrollback(10**6)) == SCROLLBACK


def test_its_memory_is_bounded_and_the_alternate_screen_is_known_beyond_it() -> None:
    emulator = lines(b"before\r\n\x1b[?1049h")
    tracemalloc.start()
    for _ in range(64):
        emulator.feed(b"\x1b[1;1Hdrawn" * 10_000)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 1 << 20
    emulator.feed(b"\x1b[?1049lafter")
    assert emulator.screen().lines[0] == "after"
    emulator.feed(b"x" * (1 << 20))
    assert emulator.screen().lines[0].strip("x") == ""
