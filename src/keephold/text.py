"""Text as it may be shown: without what a terminal would act on, and with what a user could not see (K4); and values as
JSON, sizes and times as text.

A user who approves a text must see all of it. Characters without a visible form are therefore shown as escapes:
`<U+2800>` in text, `\\u2800` in JSON. `str.isprintable` knows most of them, by their Unicode category: controls, format
characters, direction marks, tags, private use, unassigned, and every blank but the space. `_UNSEEN` has the rest.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec

_UNSEEN = (
    "["
    # Default_Ignorable_Code_Point of Unicode 16.0, which fonts draw as nothing
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # fillers, joiners and blanks that have another category and no ink
    "\u2800\u2d7f\ufffc\U0001107f\U00013441\U00013442\U00016fe4\U0001d159"
    "]"
)
_PICTURE = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
# The joiners that make one emoji of several, and the selector that makes a picture of a sign. There they are visible.
_IN_EMOJI = (
    f"(?:(?<=[{_PICTURE}])|(?<=[{_PICTURE}]\ufe0f))\u200d(?=[{_PICTURE}])"
    f"|(?<=[{_PICTURE}])\ufe0f|(?<=[0-9#*])\ufe0f(?=\u20e3)"
)
_RIGHT_TO_LEFT = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
_STRING = r'"((?:[^"\\\n]|\\.)*)"'
ISOLATE, ISOLATED = "\u2068", "\u2069"
"""Begin and end a text that cannot reorder what is beside it."""
_LAST_KEPT = 0xFFFF
"""The last character whose form is kept: hostile text must not fill the memory with rare ones."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when the first text needs it: most text is ASCII, and these take longer than a short command's
    own work."""
    return re.compile(pattern)


def is_seen(character: str) -> bool:
    """Return whether a character has a visible form, or is the space."""
    return character.isprintable() and not _compiled(_UNSEEN).match(character)


def code_point(character: str) -> str:
    """Return `U+2800`."""
    return f"U+{ord(character):04X}"


class _Forms(dict[int, int | str]):
    """The form in which each character is shown, for `str.translate`."""

    def __init__(self, escape: Callable[[str], str], kept: str) -> None:
        self._escape = escape
        self._kept = kept

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        form = code if is_seen(character) or character in self._kept else self._escape(character)
        if code <= _LAST_KEPT:
            self[code] = form
        return form


def _marked(character: str) -> str:
    return f"<{code_point(character)}>"


def _blank_or_marked(character: str) -> str:
    return " " if unicodedata.category(character) == "Zs" else _marked(character)


_EXACT = _Forms(_marked, "\n\t")
_LINE = _Forms(_marked, "")
_READABLE = _Forms(_blank_or_marked, "\n\t")
_JSON = _Forms(lambda character: json.dumps(character)[1:-1], "\n")


def exact(text: str) -> str:
    """Return a text that is to be approved: everything that cannot be seen is an escape, and nothing is left out."""
    return _translated(text, _EXACT)


def exact_line(text: str) -> str:
    """Return a text for the middle of a line: as `exact`, and line ends and tabs are escapes, too."""
    return _translated(text, _LINE)


def readable(text: str, before: str = "") -> str:
    """Return a text that is only read: as `exact`, but every kind of blank is a space. `before` is what precedes it."""
    return _translated(text, _READABLE, before)


def exact_json(text: str) -> str:
    """Return JSON whose strings show everything as `exact` does, and still mean the same."""
    return _translated(text, _JSON)


def readable_json(value: Any) -> str:
    """Return JSON for a user to read and edit. It shows every character, because the user approves all of it."""
    return exact_json(json.dumps(value, indent=2, ensure_ascii=False))


def ends_within_emoji(text: str) -> bool:
    """Return whether only the next character tells if the last one belongs to an emoji."""
    return text.endswith(("\u200d", "\ufe0f"))


def _translated(text: str, forms: _Forms, before: str = "") -> str:
    if text.isascii() and text.isprintable():
        return text
    if "\u200d" not in text and "\ufe0f" not in text:
        return text.translate(forms)
    parts: list[str] = []
    at, whole = len(before), before + text
    for joiner in _compiled(_IN_EMOJI).finditer(whole, at):
        parts += (whole[at : joiner.start()].translate(forms), joiner[0])
        at = joiner.end()
    return "".join((*parts, whole[at:].translate(forms)))


def has_right_to_left(text: str) -> bool:
    """Return whether some of it is written from right to left, which would reorder what is beside it."""
    return not text.isascii() and _compiled(_RIGHT_TO_LEFT).search(text) is not None


def isolated(text: str) -> str:
    """Return lines for a terminal whose text cannot reorder what is beside them."""
    if not has_right_to_left(text):
        return text
    return "\n".join(f"{ISOLATE}{line}{ISOLATED}" if has_right_to_left(line) else line for line in text.split("\n"))


def isolated_json(text: str) -> str:
    """Return JSON whose strings cannot reorder the other ones."""
    return _compiled(_STRING).sub(lambda string: f'"{isolated(string[1])}"', text) if has_right_to_left(text) else text


def without_isolates(text: str) -> str:
    """Return an id that a user may have copied from where it was `isolated`."""
    return text.strip(ISOLATE + ISOLATED)


SEQUENCE_SIZE = 4096
"""How far back to look for the beginning of a control sequence that a cut has split."""

# A string that is never ended (an OSC may not span lines, the others may if they are ended) goes no further than its
# line: the alternative is that two stray bytes hide everything after them.
SEQUENCE = re.compile(
    "(?:\x1b\\]|\x9d)[^\x07\x18\x1a\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?"  # OSC: titles, links, the clipboard
    "|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])"  # DCS, SOS, PM, APC: images, device strings
    "(?:[^\x18\x1a\x1b\x90\x98\x9c\x9e\x9f]*(?:\x1b\\\\|\x9c)|[^\x18\x1a\x1b\x9c\n]*)"
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    "|\x1b[ -/]*[0-~]?"  # the other escapes
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # single controls
)
_CONTROL_BYTES = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_CARRIAGE_RETURN = re.compile("\r+\n?")


def strip_controls(text: str) -> str:
    """Text that may be shown in a terminal (K4): no control sequences, no controls but newline and tab.

    A carriage return becomes a newline, also when it stands alone. A terminal would overwrite the line; here what was
    printed stays to be seen.
    """
    return SEQUENCE.sub("", _CARRIAGE_RETURN.sub("\n", text)) if has_controls(text) else text


def printable(text: str) -> str:
    """Text of several lines for a user to read: without control sequences, and with what cannot be seen as escapes."""
    return readable(strip_controls(text))


def has_controls(text: str) -> bool:
    """Whether there may be controls. Most text has none, and this is twenty times faster than looking for sequences."""
    data = text.encode("utf-8", "surrogatepass")
    return b"\xc2" in data or len(data.translate(None, _CONTROL_BYTES)) < len(data)


# Values, sizes and times as text


def to_json(value: Any) -> bytes:
    """Return compact JSON, also of strings that are not valid text."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(msgspec.to_builtins(value, str_keys=True)))


def json_text(value: Any) -> str:
    """Return JSON of any value for a message, also of values that JSON does not have."""
    return json.dumps(value, default=repr, ensure_ascii=False, skipkeys=True)


def plain(value: Any) -> Any:
    """A copy of a value as JSON has it: dicts, lists, strings, numbers, booleans, None. Raises where that cannot be."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=as_text)


def as_text(value: Any) -> str:
    """For encoders: what is a string by another name, such as a key, is a string."""
    if isinstance(value, str):
        return str.__str__(value)
    raise NotImplementedError(f"a {type(value).__name__} is not JSON")


def has_no_number(value: Any) -> bool:
    """Whether there is a float in it that JSON has no number for: infinity, or not a number at all."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(has_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(has_no_number, value))


def to_utf8(text: str) -> bytes:
    """The bytes of a text that are counted and shown."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A half of a surrogate pair (a file name that is not UTF-8 has them) cannot be sent anywhere as text.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def byte_size(count: int) -> str:
    """Return a number of bytes as `512 B`, `1.5 kB`, `12 MB`."""
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}" if unit != "B" and amount < 10 else f"{amount:.0f} {unit}"


def duration(seconds: float) -> str:
    """Return the two largest units: `45s`, `2m 3s`, `1h 2m`, `3d 4h`."""
    whole = max(0, int(seconds))
    for size, unit, smaller, next_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // smaller}{next_unit}"
    return f"{whole}s"


def relative(at: float, now: float) -> str:
    """Return a time relative to now: `in 3m 5s`, `3m 5s ago`."""
    return f"in {duration(at - now)}" if at > now else f"{duration(now - at)} ago"


def instant(at: float) -> str:
    """Return a time as `2026-01-01T00:00:00.000Z`."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of_day(at: float) -> str:
    """Return `2026-01-01T00:00:00Z`."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return to_utf8(value).decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
