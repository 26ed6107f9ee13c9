"""Text as it may be shown: bytes a tool printed, without what a terminal would act on (K4), and values as JSON."""

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from keephold.characters import readable

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
