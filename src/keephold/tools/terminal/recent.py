"""The last output of a terminal, in which prompts and drawings are found."""

import re

from keephold.text import strip_controls

_LIMIT = 64 * 1024
_LINE = 4096
_PROMPT = 200

_POSITIONS = re.compile(rb"\x1b\[(?:[0-9]*(?:;[0-9]*)?[Hf]|[0-9]*d)")
"""Sequences that move the cursor to a position of the screen (CUP, HVP, VPA)."""

_LEAVES = re.compile(rb"\x1b\[\?(?:1049|1047|47)l")
"""The alternate screen is left."""


class Recent:
    """The last 64 KiB of a terminal's output."""

    def __init__(self, start: int = 0) -> None:
        """`start` is the offset of the output that is added first."""
        self._data = bytearray()
        self._total = start

    def add(self, data: bytes) -> None:
        self._total += len(data)
        self._data += data[-_LIMIT:]
        if len(self._data) > 2 * _LIMIT:
            del self._data[:-_LIMIT]

    def all(self) -> bytes:
        """Return all of it."""
        return bytes(self._data)

    def positions(self, since: int) -> bool:
        """Whether the output from that offset on moves the cursor about the screen."""
        length = min(self._total - since, _LIMIT)
        if length <= 0:
            return False
        start = max(0, len(self._data) - length)
        for left in _LEAVES.finditer(self._data, start):  # drawings on a screen that is gone do not count
            start = left.end()
        return _POSITIONS.search(self._data, start) is not None

    def last_line(self) -> str:
        """Return the last line that is not blank, as text; empty if there is none."""
        lines = strip_controls(self._data[-_LINE:].decode(errors="replace")).split("\n")
        return next((line.strip()[-_PROMPT:] for line in reversed(lines) if line.strip()), "")
