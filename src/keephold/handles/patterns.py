"""Patterns of lines (A9): regular expressions of RE2, so the time of a search is in proportion to the text.

A pattern is matched against one line at a time: `^` and `$` are the ends of the line.
"""

import re
from functools import lru_cache
from typing import Any

_MEMORY = 1 << 20
"""Bytes that RE2 may use for one pattern."""
_LARGEST = 2000
"""Instructions of a pattern. The time of a search may be in proportion to these, too."""
_WORK = 1 << 23
"""Bytes of a step, times instructions: tens of milliseconds if the pattern is of the slowest kind."""
_STEP = 1 << 16


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled", "step")

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.step: int = max(1024, min(_STEP, _WORK // max(1, compiled.programsize)))
        """How many bytes to search at once."""

    def find(self, text: bytes, start: int = 0) -> tuple[int, int] | None:
        """Return where the first match begins and ends."""
        found = self._compiled.search(text, start)
        return None if found is None else found.span()


_OF_TEXT = {"\\A": "^", "\\z": "$"}
"""The ends of the text, as patterns name them: here a text is a line."""


@lru_cache(64)
def compiled(source: str) -> Pattern:
    """Return the pattern of a regular expression. Raises `ValueError` with the reason if RE2 refuses it."""
    import re2

    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_capture = True
    options.never_nl = True  # a match is within one line, though many are searched at once
    lines = re.sub(r"\\.", lambda escape: _OF_TEXT.get(escape[0], escape[0]), source, flags=re.DOTALL)
    if re.search(r"\(\?\w*-\w*m", source):
        raise ValueError("`(?-m)` is not supported: a pattern is matched against one line at a time")
    try:
        found = re2.compile(source, options)
        if found.programsize <= _LARGEST:
            return Pattern(re2.compile(f"(?m){lines}", options))
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(said or "not a regular expression") from None
    except UnicodeEncodeError:
        raise ValueError("not text") from None
    raise ValueError(f"pattern too large: {found.programsize} instructions, and at most {_LARGEST} are taken")
