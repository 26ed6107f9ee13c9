"""What was printed comes in pieces that end anywhere, and is shown as if it had come at once (K4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold.cli.printing import printable
from keephold.control.safe_text import Plain, Raw, Readable, Rendered
from keephold.handles.rendering import render

PARTS = st.sampled_from(
    [
        b"text", b"\n", b"\r\n", b"\r", b"\t", "größer".encode(), "漢字".encode(), b"\xff", b"\x07", b"\x1b[31m",
        b"\x1b[K", b"\x1b]0;a title\x07", b"\x1b]8;;http://x\x1b\\", b"\x1bP1$r\x1b\\", b"\b", "\u202e".encode(),
        b"\n\x1b[?1049hone\ntwo\x1b[?1049l",
    ]
)  # fmt: skip
PIECES = st.lists(st.integers(1, 6), min_size=1)


def shown(readable: Readable, data: bytes, sizes: list[int]) -> bytes:
    """What it gives for the data in pieces of these sizes."""
    said, start, turn = b"", 0, 0
    while start < len(data):
        said += readable.feed(data[start : start + sizes[turn % len(sizes)]])
        start += sizes[turn % len(sizes)]
        turn += 1
    return said + readable.end()


@given(st.lists(PARTS).map(b"".join), PIECES)
def test_K4_text_is_the_same_however_it_comes(data: bytes, sizes: list[int]) -> None:
    assert shown(Plain(), data, sizes).decode() == printable(data.decode(errors="replace"))


@given(st.lists(PARTS).map(b"".join), PIECES)
def test_K4_a_terminals_lines_are_the_same_however_they_come(data: bytes, sizes: list[int]) -> None:
    """But for blanks that a cursor leaves: a text is never longer than what it was made of."""
    once = printable(render(data, b"", 80))
    assert shown(Rendered(80), data, sizes).decode().replace(" ", "") == once.replace(" ", "")


@given(st.binary(), PIECES)
def test_raw_is_what_was_printed(data: bytes, sizes: list[int]) -> None:
    assert shown(Raw(), data, sizes) == data


@pytest.mark.parametrize("readable", [Plain(), Rendered(80)])
def test_what_was_held_back_is_shown_at_the_end_and_what_follows_begins_anew(readable: Readable) -> None:
    assert readable.feed(b"one\ntwo\x1b[3") + readable.end() == b"one\ntwo"
    assert readable.feed(b"1mthree") + readable.end() == b"1mthree"


def test_a_terminals_line_that_never_ends_is_shown_in_parts() -> None:
    readable = Rendered(1000)
    assert len(readable.feed(b"x" * (1 << 20))) == 0
    assert len(readable.feed(b"x")) == (1 << 20) + 1


def test_the_alternate_screen_stays_hidden_over_many_pieces() -> None:
    readable = Rendered(80)
    pieces = [b"$ vim\r\n\x1b[?1049h", *[b"~ a line that vim draws\r\n" * 100] * 10, b"\x1b[?1049l$ exit\r\n"]
    assert b"".join(map(readable.feed, pieces)) == b"$ vim\n$ exit\n"
