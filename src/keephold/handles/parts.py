"""Deleting much without holding others up: in parts, each as large as takes a moment, with a pause as long after each.

A commit that arrives during a part waits for it, and may be written together with the next one. So others wait for two
parts at most.
"""

import asyncio

_SECS = 0.01
"""How long a part should take."""
_LEAST, _MOST = 20, 500


class Parts:
    """How many handles a part deletes, from how long parts took."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 50

    async def took(self, seconds: float) -> None:
        """Choose the size of the next part, and pause."""
        wanted = self.size * _SECS / max(seconds, 1e-6)
        self.size = int(min(max(wanted, _LEAST), 2 * self.size, _MOST))
        await asyncio.sleep(min(seconds, 1.0))
