"""The last lines of the handles that are to be seen in `keephold top`, asked of the processes that run them.

A handle is listened to while its row is on the screen. So however many run, only as many are listened to as there are
rows.
"""

import asyncio
from collections.abc import Callable, Iterable

from keephold.cli.top_rows import Fact
from keephold.cli.top_source import Source
from keephold.errors import KeepholdError


class Glances:
    """Calls `told(uid, line)` with every new last line of what it was told to look at."""

    def __init__(self, source: Source, told: Callable[[str, str], None]) -> None:
        self._source = source
        self._told = told
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()
        """Those that have nothing to say: not asked again until something about them changes."""

    def look_at(self, facts: Iterable[Fact]) -> None:
        """These are to be seen, and no others."""
        seen = {fact["uid"]: fact for fact in facts if fact["state"] == "running" and not fact["parked"]}
        for uid in [uid for uid in self._listening if uid not in seen]:
            self._listening.pop(uid).cancel()
        for uid, fact in seen.items():
            if uid not in self._listening and uid not in self._silent:
                self._listening[uid] = asyncio.ensure_future(self._listen(fact))

    def forget(self, uids: Iterable[str] | None = None) -> None:
        """Something has changed about these, or about all: what could not be heard may be now."""
        if uids is None:
            self._silent.clear()
        else:
            self._silent.difference_update(uids)

    async def close(self) -> None:
        """Listen to none any more."""
        tasks = list(self._listening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, fact: Fact) -> None:
        uid = fact["uid"]
        try:
            async for line in self._source.last_lines(fact):
                self._told(uid, line)
        except KeepholdError:  # nobody runs it any more, or whoever does is not to be reached
            pass
        self._silent.add(uid)
        self._listening.pop(uid, None)
