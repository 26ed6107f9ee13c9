"""What a terminal was sent, as text: what programs really print comes out as it was meant, and nothing can break it."""

import sys
import unicodedata
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soak import tries
from tests.unit.terminal.noise import noise
from tests.unit.terminal.recorded import BASH_EDITS, BASH_UNDO, BASH_WIDE, CAT_ECHO, LESS, LS, VIM, VIM_QUITS

from keephold.handles.rendering import on_alternate, render


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (BASH_EDITS, "$ ehko hi!\nbash: ehko: command not found\n$ "),
        (BASH_WIDE, "$ echo 你x\n你x\n$ "),
        (BASH_UNDO, "$ printf 'a\\tb\\n'\na\tb\n$ "),
        (CAT_ECHO, "ad\nad\ny\ny\n"),
        (b"$ vim\r\n" + VIM + VIM_QUITS + b"$ ", "$ vim\n$ "),
        (b"$ less x\r\n" + LESS, "$ less x\n"),
    ],
    ids=["edited", "wide", "undone", "echoed by the terminal", "vim", "less, still open"],
)
def test_what_programs_print_is_what_a_person_would_have_read(data: bytes, text: str) -> None:
    assert render(data, cols=80) == render(data) == text


def test_colours_are_dropped_and_text_stays() -> None:
    assert render(LS).splitlines()[1:3] == ["drwxr-xr-x 2 4096  d/", "lrwxrwxrwx 1    9  link -> notes.txt"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"1%\r22%\r100%\r\n", "100%\n"),
        (b"100%\rdone\r\n", "done\n"),
        (b"downloading\rdone", "doneloading"),
        (b"working...\r\x1b[Kdone\r\n", "done\n"),
        (b"working...\r\x1b[2Kdone", "done"),
        (b"working...\r\x1b[Jdone", "done"),
        (b"abcdef\x1b[3D\x1b[1Kx", "   xef"),
        (b"abcdef\x1b[2D\x1b[K", "abcd"),
        (b"abc\x1b[5Gx", "abc x"),
        (b"abc\x1b[2Cx\x1b[1Gy", "ybc  x"),
        (b"abcdef\r\x1b[2Px", "xdef"),
        (b"abcdef\r\x1b[2@x", "x abcdef"),
        (b"abcdef\r\x1b[2Xx", "x cdef"),
        (b"ab\b\b\bx", "xb"),
        (b"ab\b \b", "a"),
        (b"a  \b\b", "a"),
        (b"prompt> ", "prompt> "),
        (b"a\r\r\nb\n\rc", "a\nb\nc"),
        (b"a \r\n", "a \n"),
        (b"\x1b[1ma \x1b[m\r\n", "a \n"),
        (b"a\tb", "a\tb"),
        (b"\x1b[ma\tb\x1b[9Gc", "a\tc"),
        (b"\x1b[1m\ta\r\x1b[4Gx", "   x    a"),
        (b"abcdefgh\rx\ty", "xbcdefghy"),
        ("你好\b\b\bx".encode(), " x好"),
        ("你好\rx".encode(), "x 好"),
        ("a\u0301b\r\x1b[Cc".encode(), "a\u0301c"),
        (b"\x1b[3J\x1b[H\x1b[2Jtop", "top"),
        (b"up\x1b[Ahere", "uphere"),
    ],
)
def test_the_cursor_moves_within_its_row(data: bytes, text: str) -> None:
    assert render(data) == text


def test_a_full_row_goes_on_in_the_next_and_is_done() -> None:
    assert render(b"0123456789", cols=4) == "0123456789"
    assert render(b"01234567\rab", cols=4) == "0123ab67"
    assert render(b"0123\rab", cols=4) == "ab23"  # the row is full, the cursor still in it
    assert render(b"0123\x1b[m4\rab", cols=4) == "0123ab"
    assert render("你好吗\rx".encode(), cols=5) == "你好x"
    assert render(b"\x1b[32m*\x1b[0m\x1b[999C\x1b[4D[OK]", cols=20) == "*" + " " * 14 + "[OK]"


def test_blanks_for_what_was_skipped_never_make_it_longer_than_the_data() -> None:
    assert render(b"a\x1b[50Gb") == "a" + " " * 5 + "b"
    assert render(b"a\x1b[0;1;31m\x1b[0m\x1b[20Gb") == "a" + " " * 18 + "b"


@pytest.mark.parametrize(
    "sequence",
    [
        b"\x1b]0;a title\x07",
        b"\x1b]8;;http://example.org/\x1b\\",
        b"\x1bPq#0;2;0;0;0~~\x1b\\",
        b"\x1b_Gf=24;AAAA\x1b\\",
        b"\x1b(B",
        b"\x1b=",
        b"\x1b7",
        b"\x1b[?25l",
        b"\x1b[>4;2m",
        b"\x1b[38;2;1;2;3m",
        b"\x1b[4:3m",
        b"\x1b[1 q",
        b"\x1b[" + b"9" * 3000 + b"m",
        b"\x07",
        b"\0",
        b"\x0e",
        b"\x7f",
        b"\xc2\x85",
        b"\xc2\x9b31m",
    ],
    ids=lambda sequence: repr(sequence[:20]),
)
def test_every_other_sequence_is_dropped_wherever_the_data_is_cut(sequence: bytes) -> None:
    data = b"one" + sequence + b"two"
    assert render(data) == "onetwo"
    for cut in range(3, len(data) - 3, max(1, len(sequence) // 50)):
        if data[cut] & 0xC0 != 0x80:
            assert render(data[:cut]) + render(data[cut:], data[:cut]) == "onetwo", cut


def test_what_was_on_the_alternate_screen_is_left_out() -> None:
    for mode in (b"47", b"1047", b"1049"):
        data = b"a\x1b[?%bh\x1b[Hdrawn\r\n\x1b[?25l\x1b[?%blb" % (mode, mode)
        assert render(data) == "ab"
    assert render(b"a\x1b[?1;1049hdrawn") == "a"
    assert render(b"a\x1b[?1049hdrawn\x1bcb") == "ab"
    assert render(b"plain\x1b[?1049ltext") == "plaintext"
    assert render(b"\x1b[?1048ha\x1b[1049hb") == "ab"


def test_it_may_have_begun_before() -> None:
    begun = b"$ vim\r\n\x1b[?1049h\x1b[H" + b"drawn" * 1000
    assert render(b"drawn", begun) == ""
    assert render(b"drawn\x1b[?1049l$ ", begun) == "$ "
    assert render(b"text", begun + b"\x1b[?1049l") == "text"
    assert render(b"text", begun + b"\x1bc") == "text"
    assert render(b"49hdrawn\x1b[?1049lx", b"a\x1b[?10") == "x"
    assert on_alternate(b"nothing is told", otherwise=True)
    assert not on_alternate(b"\x1b[?1049l nothing", otherwise=True)
    assert not on_alternate(b"\x1bc", otherwise=True)


def test_bad_bytes_are_replaced() -> None:
    assert render(b"a\xffb\xe4\xbd") == "a\ufffdb\ufffd"
    assert render(b"\x1b[1ma\xffb\xe4\xbd") == "a\ufffdb\ufffd"


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t"), max_size=300))
def test_plain_text_is_what_it_is(text: str) -> None:
    sent = text.replace("\n", "\r\n").encode()
    assert render(sent) == text
    assert render(b"\x1b[m" + sent, cols=1000) == text


@pytest.mark.slow
@given(data=noise, before=noise, cols=st.integers(1, 100))
@settings(max_examples=tries(200, soak=400))
def test_nothing_makes_it_raise_or_show_controls_or_more_than_there_was(data: bytes, before: bytes, cols: int) -> None:
    for text in (render(data, b"", cols), render(data, before, cols)):
        assert not any(
            unicodedata.category(character) == "Cc" for character in text.replace("\n", "").replace("\t", "")
        )
        assert len(text.encode()) <= len(data.decode("utf-8", "replace").encode())


@pytest.mark.parametrize(
    "piece",
    [
        b"\b",
        b"\r",
        b"x\b",
        b"\rx",
        b"\x1b[@",
        b"\x1b[1Kx",
        b"\x1b[999Gx\n",
        b"\t\rx\n",
        b"\xcc\x81",
        b"\x1bP",
        b"\x1b]",
    ],
    ids=repr,
)
@pytest.mark.slow
def test_its_work_grows_with_the_data_and_no_faster(piece: bytes) -> None:
    def steps(size: int) -> int:
        """How many lines of Python are run."""
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            render(b"x" * 100 + piece * (size // len(piece)))
        finally:
            sys.settrace(before)
        return count

    assert steps(40_000) < 5 * steps(10_000) + 1000


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"\b", b"\r"])
def test_sixteen_megabytes_of_one_control_are_one_step(piece: bytes) -> None:
    assert render(b"x" + piece * (16 << 20) + b"y") == "y"
