"""What a terminal was sent last, as far back as anybody asks."""

import re

from holdfast.handles.text import strip_controls

_LIMIT = 64 * 1024
_LINE = 4096
_PROMPT = 200

_POSITIONS = re.compile(rb"\x1b\[(?:[0-9]*(?:;[0-9]*)?[Hf]|[0-9]*d)")
"""The cursor goes to a place of the screen (CUP, HVP, VPA), wherever it was."""


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
        return length > 0 and _POSITIONS.search(self._data, max(0, len(self._data) - length)) is not None

    def last_line(self) -> str:
        """The last line that has something in it, as text; empty if there is none."""
        lines = strip_controls(self._data[-_LINE:].decode(errors="replace")).split("\n")
        return next((line.strip()[-_PROMPT:] for line in reversed(lines) if line.strip()), "")
