"""What a terminal was sent last, as far back as anybody asks."""

import re

from keephold.handles.text import strip_controls

_LIMIT = 64 * 1024
_LINE = 4096
_PROMPT = 200

_POSITIONS = re.compile(rb"\x1b\[(?:[0-9]*(?:;[0-9]*)?[Hf]|[0-9]*d)")
"""The cursor goes to a place of the screen (CUP, HVP, VPA), wherever it was."""

_LEAVES = re.compile(rb"\x1b\[\?(?:1049|1047|47)l")
"""The alternate screen is left."""


class Recent:
    """The last 64 KiB of a terminal's output."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        self._data += data[-_LIMIT:]
        if len(self._data) > 2 * _LIMIT:
            del self._data[:-_LIMIT]

    def positions(self, since: int) -> bool:
        """Whether what was printed from that offset on moves the cursor about the screen."""
        length = min(self._total - since, _LIMIT)
        if length <= 0:
            return False
        start = max(0, len(self._data) - length)
        for left in _LEAVES.finditer(self._data, start):  # what was drawn on a screen that is gone does not count
            start = left.end()
        return _POSITIONS.search(self._data, start) is not None

    def last_line(self) -> str:
        """The last line that has something in it, as text; empty if there is none."""
        lines = strip_controls(self._data[-_LINE:].decode(errors="replace")).split("\n")
        return next((line.strip()[-_PROMPT:] for line in reversed(lines) if line.strip()), "")
