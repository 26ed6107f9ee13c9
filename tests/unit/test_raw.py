"""The terminal of whoever attaches: the key that detaches, and what draws another terminal's screen in it."""

import click
import pytest

from keephold.cli.attach import DetachKey, over
from keephold.tools.base import Screen
from keephold.tools.terminal.emulator import Emulator, open_emulator
from keephold.turn.attach_protocol import redraw


@pytest.mark.parametrize(
    ("named", "shown", "sent"),
    [
        ("C-]", "Ctrl-]", b"\x1d"),
        ("ctrl-a", "Ctrl-a", b"\x01"),
        ("^\\", "Ctrl-\\", b"\x1c"),
        ("C-B", "Ctrl-b", b"\x02"),
    ],
)
def test_a_key_is_named_in_the_usual_ways(named: str, shown: str, sent: bytes) -> None:
    key = DetachKey.parse(named)
    assert (key.name, key.forms[0]) == (shown, sent)


@pytest.mark.parametrize("named", ["", "]", "C-", "C-ä", "C-]]", "F1", "M-x", "C-1"])
def test_what_is_no_key_is_refused_with_an_example(named: str) -> None:
    with pytest.raises(click.BadParameter, match="such as `C-]`"):
        DetachKey.parse(named)


@pytest.mark.parametrize("form", [b"\x1d", b"\x1b[93;5u", b"\x1b[27;5;93~"])
def test_the_key_is_found_in_every_form_that_terminals_send(form: bytes) -> None:
    key = DetachKey.parse("C-]")
    assert key.before(b"typed" + form + b"more") == b"typed"
    assert key.before(form) == b""
    assert key.before(b"typed \x1b[93;2u") is None


def emulator(printed: bytes = b"") -> Emulator:
    opened = open_emulator(6, 20, lambda _: None, kind="ghostty")
    opened.feed(printed)
    return opened


def drawn(first: bytes, *more: bytes) -> Screen:
    """What a terminal shows that was used before, after these bytes."""
    terminal = emulator(b"\x1b[2;4r\x1b[7mold\r\nthings\r\n" * 5)
    for each in (first, *more):
        terminal.feed(each)
    screen = terminal.screen()
    terminal.close()
    return screen


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"$ ls\r\na  b\r\n$ ",
        b"\x1b[3;7Hhere",
        "größer 漢字 x".encode(),
        b"line\r\n" * 30 + b"last",
        b"x" * 20,
        b"\x1b[?1049h\x1b[H~\r\n~\x1b[6;1H:wq",
        b"\x1b[?1049h\x1b[?1049lback",
    ],
)
def test_a_terminal_shows_the_screen_of_another(printed: bytes) -> None:
    other = emulator(printed)
    screen = other.screen()
    other.close()
    shown = drawn(redraw(screen))
    assert (shown.lines, shown.alternate) == (screen.lines, screen.alternate)
    if printed != b"x" * 20:  # behind the last column there is no place to put a cursor
        assert shown.cursor == screen.cursor


def test_the_hint_takes_the_last_line_if_it_is_free_and_leaves_the_cursor_where_it_was() -> None:
    free = Screen(lines=("$ ls", "a  b", "$", "", "", ""), rows=6, cols=20, cursor=(3, 3))
    shown = drawn(redraw(free), over(free, " Ctrl-] detaches "))
    assert (shown.lines[5].strip(), shown.lines[:3], shown.cursor) == ("Ctrl-] detaches", free.lines[:3], (3, 3))
    full = Screen(lines=tuple("abcdef"), rows=6, cols=10, cursor=(6, 2))
    shown = drawn(redraw(full), over(full, " Ctrl-] detaches "))
    assert (shown.lines[0], shown.lines[1:], shown.cursor) == (" Ctrl-] d", tuple("bcdef"), (6, 2))


def test_K4_what_is_on_a_screen_is_text() -> None:
    screen = Screen(lines=("\x1b]0;title\x07text", "", "", "", "", ""), rows=6, cols=20, cursor=(1, 1))
    assert b"title" not in redraw(screen)
