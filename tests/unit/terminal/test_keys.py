"""Named keys and what a terminal sends for them."""

import pytest

from keephold.errors import ToolError
from keephold.tools.terminal.keys import as_bytes


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("ENTER", b"\r"),
        ("TAB", b"\t"),
        ("S-TAB", b"\x1b[Z"),
        ("ESC", b"\x1b"),
        ("SPACE", b" "),
        ("BACKSPACE", b"\x7f"),
        ("DELETE", b"\x1b[3~"),
        ("INSERT", b"\x1b[2~"),
        ("UP", b"\x1b[A"),
        ("DOWN", b"\x1b[B"),
        ("RIGHT", b"\x1b[C"),
        ("LEFT", b"\x1b[D"),
        ("HOME", b"\x1b[H"),
        ("END", b"\x1b[F"),
        ("PAGEUP", b"\x1b[5~"),
        ("PAGEDOWN", b"\x1b[6~"),
        ("F1", b"\x1bOP"),
        ("F4", b"\x1bOS"),
        ("F5", b"\x1b[15~"),
        ("F6", b"\x1b[17~"),
        ("F10", b"\x1b[21~"),
        ("F11", b"\x1b[23~"),
        ("F12", b"\x1b[24~"),
        ("C-a", b"\x01"),
        ("C-c", b"\x03"),
        ("C-z", b"\x1a"),
        ("C-[", b"\x1b"),
        ("C-\\", b"\x1c"),
        ("C-]", b"\x1d"),
        ("C-^", b"\x1e"),
        ("C-_", b"\x1f"),
        ("C-SPACE", b"\0"),
        ("M-x", b"\x1bx"),
        ("M-X", b"\x1bX"),
        ("M-.", b"\x1b."),
        ("M--", b"\x1b-"),
        ("M-BACKSPACE", b"\x1b\x7f"),
        ("M-C-a", b"\x1b\x01"),
        ("M-é", "\x1bé".encode()),
    ],
)
def test_each_key_sends_what_xterm_does(name: str, sent: bytes) -> None:
    assert as_bytes([name]) == sent
    if not name.startswith("M-"):
        assert as_bytes([name.lower()]) == as_bytes([name.upper()]) == sent


def test_cursor_keys_have_an_application_form_and_others_do_not() -> None:
    keys = ["UP", "DOWN", "RIGHT", "LEFT", "HOME", "END", "DELETE", "F5"]
    assert as_bytes(keys, application=True) == b"\x1bOA\x1bOB\x1bOC\x1bOD\x1bOH\x1bOF\x1b[3~\x1b[15~"


def test_keys_are_sent_in_order() -> None:
    assert as_bytes(["ESC", "C-c", "ENTER"]) == b"\x1b\x03\r"
    assert as_bytes([]) == b""


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("RETURN", "ENTER"),
        ("PGUP", "PAGEUP"),
        ("C-cc", "C-c"),
        ("F13", "F"),
        ("ESCAPE", "ESC"),
        ("ctrl-c", "C-c"),
        ("Ctrl+D", "C-d"),
        ("alt-x", "M-x"),
        ("banana", None),
    ],
)
def test_C9_an_unknown_key_is_an_error_that_names_the_nearest_and_the_known(name: str, nearest: str | None) -> None:
    with pytest.raises(ToolError) as caught:
        as_bytes(["UP", name])
    assert caught.value.code == "invalid_arguments"
    assert f"`{name}`" in caught.value.message
    assert "PAGEDOWN" in caught.value.message and "C-a to C-z" in caught.value.message
    assert ("the nearest is" in caught.value.message) == (nearest is not None)
    assert nearest is None or f"the nearest is `{nearest}" in caught.value.message


@pytest.mark.parametrize("name", ["", "M-", "C-", "M-M-x", "C-1", "M-\n", "hello"])
def test_C9_what_is_no_key_is_refused(name: str) -> None:
    with pytest.raises(ToolError, match="no key"):
        as_bytes([name])
