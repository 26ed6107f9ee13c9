"""The operations that commands perform, on the store or through a server.

`cli/store_control.py` reads the store and talks to the processes that run handles; `RemoteControl` asks a server.
Commands work with both. Everything is JSON as `handle_json.py` makes it; a refusal is a `KeepholdError`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from keephold.turn import attach_protocol as frames


class Controls(Protocol):
    """The operations of commands. They take a handle's facts, as `find` returns them, or its uid."""

    @property
    def place(self) -> str:
        """Return the store or server that this reads, for messages."""

    async def find(self, ids: Iterable[str], conversation: str | None) -> list[dict[str, Any]]:
        """Return the facts of the handles that these ids or uids name (`resolve_handle.py`)."""

    async def handles(
        self,
        *,
        conversation: str | None = None,
        state: str | None = None,
        tool: str | None = None,
        since: float | None = None,
        search: str | None = None,
        oneshot: bool = False,
        sort: str = "newest",
        after: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Return `{"handles": [facts], "next"}`; `next` is the next page's `after`. `state` may be `live` or
        `parked`."""

    async def handle(self, uid: str, *, keys: bool = False) -> dict[str, Any]:
        """Return a handle in full; its open keys only if asked for, and only from the store itself (K5)."""

    def talk(self, fact: dict[str, Any], want: frames.Want) -> AbstractAsyncContextManager[frames.Talk]:
        """Ask for a handle's output, its terminal, or to be sent something."""

    async def abort(self, uid: str) -> dict[str, Any]:
        """Abort a handle as the user, and return the reply."""

    async def retry(self, uid: str) -> dict[str, Any]:
        """Repeat a call that was stopped with code `crash_loop`: `{"id", "uid", "retry_of"}` of the new handle."""

    async def wait_for(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        output: Sequence[dict[str, str]] = (),
        ready: Sequence[str] = (),
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Wait for handles, by uid, however long that takes, and return the answer of `await`."""

    async def requests(self) -> list[dict[str, Any]]:
        """Return the open requests to the user, oldest first."""

    async def request(self, id: str) -> dict[str, Any]:
        """Return one open request. Raises `KeepholdError` if it is not open any more."""

    async def decide(self, id: str, said: dict[str, Any]) -> dict[str, Any]:
        """Decide an open request: `{"status": "taken" | "again" | "gone", "problem"}`."""

    async def permissions(self) -> list[dict[str, Any]]:
        """Return the standing permissions, oldest first."""

    async def revoke_permission(self, id: str) -> dict[str, Any]:
        """End a standing permission: `{"revoked": bool}`."""

    async def complete(self, key: str, resolution: dict[str, Any]) -> dict[str, Any]:
        """Complete a key's wait: `{"status", "terminal"}`."""

    async def revoke(self, conversation: str) -> dict[str, Any]:
        """Revoke a conversation's open keys: `{"revoked": n}`."""

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Return `{"conversations": [{"id","handles","live","updated","title","turn_open","parent"}], "next"}`."""

    async def forget(self, conversation: str) -> dict[str, Any]:
        """Delete a conversation's transcript: `{"lines": n}`."""

    async def collect(self, *, older_than: float | None, dry_run: bool, vacuum: bool) -> dict[str, Any]:
        """Delete what retention would delete now (`retention.py`)."""
