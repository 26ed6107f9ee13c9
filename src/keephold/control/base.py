"""The operations that commands perform, however they reach the system.

`cli/store_control.py` reads the store and talks to the processes that run handles; `RemoteControl` asks a server. A
command is written once, for both. Everything is JSON as `handle_json.py` makes it; a refusal is a `KeepholdError`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from keephold.turn import attach_protocol as frames


class Controls(Protocol):
    """The operations of commands. A handle is named by its facts, which `find` gives, or by its uid."""

    @property
    def place(self) -> str:
        """Where this looks, for people."""

    async def find(self, ids: Iterable[str], conversation: str | None) -> list[dict[str, Any]]:
        """The facts of the handles that are meant by these ids or uids (`finding.py`)."""

    async def handles(
        self,
        *,
        conversation: str | None = None,
        state: str | None = None,
        search: str | None = None,
        oneshot: bool = False,
        sort: str = "newest",
        after: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """`{"handles": [facts], "next"}`: `next` is the `after` of what follows. `state` may be `live` or `parked`."""

    async def handle(self, uid: str, *, keys: bool = False) -> dict[str, Any]:
        """Everything of a handle; its open keys only if asked for, and only where the store is (K5)."""

    def talk(self, fact: dict[str, Any], want: frames.Want) -> AbstractAsyncContextManager[frames.Talk]:
        """Ask for a handle's output, its terminal, or to be sent something."""

    async def abort(self, uid: str) -> dict[str, Any]:
        """End a handle, as a person; the reply of C3."""

    async def wait_for(self, facts: Sequence[dict[str, Any]], *, any: bool, timeout: float | None) -> dict[str, Any]:
        """Until all of them have stopped, or any; A3's answer."""

    async def complete(self, key: str, resolution: dict[str, Any]) -> dict[str, Any]:
        """`{"status", "terminal"}` (D5)."""

    async def revoke(self, conversation: str) -> dict[str, Any]:
        """`{"revoked": n}`: so many keys of the conversation open nothing any more."""

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        """`{"conversations": [{"id","handles","live","updated","title","turn_open","parent"}], "next"}`."""

    async def forget(self, conversation: str) -> dict[str, Any]:
        """Let go of what was said in a conversation: `{"lines": n}`."""

    async def collect(self, *, older_than: float | None, dry_run: bool, vacuum: bool) -> dict[str, Any]:
        """Let go of what retention would let go of now (`collecting.py`)."""
