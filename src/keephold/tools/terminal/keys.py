"""Named keys, as the bytes that a terminal sends for them: those of xterm.

Names are case-insensitive: `ENTER`, `UP`, `F5`, `C-c` (control), `M-x` (alt), `S-TAB`. A single character is the key
that types it.
"""

import difflib
import re
from collections.abc import Sequence

from keephold.errors import ToolError

_CURSOR = {"UP": b"A", "DOWN": b"B", "RIGHT": b"C", "LEFT": b"D", "HOME": b"H", "END": b"F"}
"""Sent after `CSI`, and in application mode (DECCKM) after `SS3`."""

_KEYS = {
    "ENTER": b"\r",  # not a line feed: programs that take single keys know no other Enter
    "TAB": b"\t",
    "S-TAB": b"\x1b[Z",
    "ESC": b"\x1b",
    "SPACE": b" ",
    "BACKSPACE": b"\x7f",
    "DELETE": b"\x1b[3~",
    "INSERT": b"\x1b[2~",
    "PAGEUP": b"\x1b[5~",
    "PAGEDOWN": b"\x1b[6~",
    **{f"F{number}": b"\x1bO" + bytes([ord("P") + number - 1]) for number in range(1, 5)},
    **{f"F{number}": b"\x1b[%d~" % code for number, code in enumerate((15, 17, 18, 19, 20, 21, 23, 24), 5)},
    **{f"C-{chr(ord('A') + number)}": bytes([number + 1]) for number in range(26)},
    **{f"C-{character}": bytes([ord(character) & 0x1F]) for character in "[\\]^_"},
    "C-SPACE": b"\0",
}
_KNOWN = (
    "ENTER, TAB, S-TAB, ESC, SPACE, BACKSPACE, DELETE, INSERT, UP, DOWN, LEFT, RIGHT, HOME, END, PAGEUP, PAGEDOWN, "
    "F1 to F12, C-a to C-z, C-[, C-\\, C-], C-^, C-_, C-SPACE, single characters, and M- before a character or a key, "
    "such as M-x"
)


def as_bytes(keys: Sequence[str], *, application: bool = False) -> bytes:
    """Return the bytes that these keys send. `application`: the program has chosen that form of cursor keys.

    Raises `ToolError` for an unknown name.
    """
    if isinstance(keys, str) or not all(isinstance(name, str) for name in keys):
        raise ToolError(
            '`keys` is a list of names of keys, such as ["C-c"] or ["DOWN", "ENTER"]', code="invalid_arguments"
        )
    return b"".join(_key(name, application) for name in keys)


def _key(name: str, application: bool) -> bytes:
    upper = name.upper()
    if upper in _CURSOR:
        return (b"\x1bO" if application else b"\x1b[") + _CURSOR[upper]
    if upper in _KEYS:
        return _KEYS[upper]
    if len(name) == 1 and name.isprintable():
        return name.encode(errors="replace")
    if upper.startswith("M-") and len(name) > 2:
        rest = name[2:]
        if len(rest) == 1 and rest.isprintable():
            return b"\x1b" + rest.encode()  # unchanged: M-x and M-X are two keys
        if not rest.upper().startswith("M-"):
            return b"\x1b" + _key(rest, application)
    raise _unknown(name)


def _unknown(name: str) -> ToolError:
    near = _nearest(name)
    hint = "." if near is None else f"; the nearest is `{near}`."
    message = f"There is no key `{name}`{hint} Keys are {_KNOWN}. Text is sent as `input`, not as keys."
    return ToolError(message, code="invalid_arguments")


def _nearest(name: str) -> str | None:
    wanted = re.sub("^(CTRL|CONTROL)[-+]|^\\^(?=.$)", "C-", re.sub("^(ALT|META)[-+]", "M-", name.upper()))
    wanted = wanted.strip("<>").removeprefix("ARROW")
    if wanted in ("RETURN", "CR", "\n", "\r", "\\N", "\\R"):
        return "ENTER"
    if not re.fullmatch("[CM]-[A-Z]", wanted):
        wanted = next(iter(difflib.get_close_matches(wanted, [*_CURSOR, *_KEYS], n=1, cutoff=0.5)), "")
    return re.sub("^([CM]-)(.)$", lambda key: key[1] + key[2].lower(), wanted) or None
