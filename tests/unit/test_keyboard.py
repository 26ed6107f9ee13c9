"""Keys out of bytes: however a terminal sends them, in whatever pieces, and whatever else is on the line."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold.cli.keyboard import KeyDecoder, KeyPress

ANYTHING = (
    "aä漢👍\x1b[A\x1bOD\x1b[1;5C\x1b[3~\x1b[200~two\r\nlines\x1b[201~\x1by\x1b]11;rgb:0/0/0\x07\x1b[[Ab\x7f\r\x03\x04"
)


def decoded(*pieces: bytes) -> list[KeyPress]:
    decoder = KeyDecoder()
    return [key for piece in pieces for key in decoder.feed(piece)]


def typed(text: str) -> list[KeyPress]:
    return [KeyPress("text", character) for character in text]


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("aä漢👍 ?", typed("aä漢👍 ?")),
        ("\r\n", [KeyPress("enter"), KeyPress("enter")]),
        ("\x7f\x08", [KeyPress("backspace")] * 2),
        ("\x03\x04\x15\x17", [KeyPress("C-c"), KeyPress("C-d"), KeyPress("C-u"), KeyPress("C-w")]),
        ("\x1b[A\x1b[B\x1b[C\x1b[D", [KeyPress("up"), KeyPress("down"), KeyPress("right"), KeyPress("left")]),
        ("\x1bOA\x1bOB\x1bOC\x1bOD", [KeyPress("up"), KeyPress("down"), KeyPress("right"), KeyPress("left")]),
        ("\x1b[H\x1bOH\x1b[1~\x1b[7~\x01", [KeyPress("home")] * 5),
        ("\x1b[F\x1bOF\x1b[4~\x1b[8~\x05", [KeyPress("end")] * 5),
        ("\x1b[3~", [KeyPress("delete")]),
        ("\x1b[200~a\x1b[201~b", [KeyPress("paste", "a"), KeyPress("text", "b")]),
        ("\x1b[200~a\r\nb\rc\x1b[2Jd\t\x03\n\n\x1b[201~", [KeyPress("paste", "a\nb\ncd\t")]),
        # What has no use here, each before a letter that must not be lost to it
        ("\x1b[1;5Ca\x1b[15~b\x1b[<0;1;1Mc\x1b[[Ad\x1bPxye", typed("abcd")),
        ("\x1b]11;rgb:1/2/3\x07a\x1b]11;rgb:1/2/3\x1b\\b\x1bP1+r\x1b\\c", typed("abc")),
        ("\x1bya\x1b\rb\x00\x1a\x1cc\td", typed("abcd")),
        ("\x1b\x1b\x1b[A", [KeyPress("escape"), KeyPress("escape"), KeyPress("up")]),
        # A sequence that is broken off ends there
        ("\x1b[1;\x03\x1bO\x03\x1b]0;x\x03", [KeyPress("C-c")] * 3),
        ("\x1b[ä\x1b[ \ra", [*typed("ä"), KeyPress("enter"), *typed("a")]),
    ],
)  # fmt: skip
def test_what_a_key_sends(sent: str, keys: list[KeyPress]) -> None:
    assert decoded(sent.encode()) == keys


@given(st.lists(st.integers(0, len(ANYTHING.encode()))))
def test_keys_may_come_in_any_pieces(cuts: list[int]) -> None:
    """But for F1 to F5 of the console, whose beginning is a whole sequence elsewhere."""
    sent = ANYTHING.replace("\x1b[[A", "").encode()
    places = [0, *sorted(cuts), len(sent)]
    pieces = [sent[start:end] for start, end in pairwise(places)]
    assert decoded(*pieces) == decoded(sent)


@given(st.binary())
def test_ctrl_c_gets_through_whatever_came_before(junk: bytes) -> None:
    """A paste excepted, which may hold one."""
    if b"\x1b[200~" not in junk:
        assert decoded(junk + b"\x03")[-1] == KeyPress("C-c")


@given(st.text(st.sampled_from("\x1b[O]PX^_0;<~A\x07\\\x03a"), max_size=12))
def test_ctrl_c_gets_through_whatever_sequence_has_begun(junk: str) -> None:
    assert decoded(junk.encode() + b"\x03")[-1] == KeyPress("C-c")


def test_an_escape_is_undecided_until_somebody_decides() -> None:
    decoder = KeyDecoder()
    assert list(decoder.feed(b"a\x1b")) == typed("a")
    assert decoder.undecided
    assert decoder.decide() == KeyPress("escape")
    assert list(decoder.feed(b"[A")) == typed("[A")


def test_the_beginning_of_a_sequence_is_no_escape() -> None:
    decoder = KeyDecoder()
    assert list(decoder.feed(b"\x1b[")) == []
    assert not decoder.undecided
    assert list(decoder.feed(b"A")) == [KeyPress("up")]
