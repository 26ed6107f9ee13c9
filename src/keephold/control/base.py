"""The operations that commands perform, on the store or through a server.

`cli/store_control.py` reads the store and talks to the processes that run handles; `RemoteControl` asks a server.
Commands work with both. Everything is JSON as `handle_json.py` makes it; a refusal is a `KeepholdError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

if TYPE_CHECKING:
    from keephold.turn import attach_protocol as frames


class HandleFilter(TypedDict, total=False):
    """Which handles a list has, and in which order. `state` may be `live`, `parked`, or how handles ended."""

    conversation: str | None
    state: str | None
    tool: str | None
    since: float | None
    search: str | None
    oneshot: bool
    sort: str
    after: str | None
    limit: int


class WaitGroups(TypedDict, total=False):
    """The handles that a wait is for, by uid: those that stop, those that print a line, those that become ready."""

    all: Sequence[str]
    any: Sequence[str]
    output: Sequence[Mapping[str, str]]
    ready: Sequence[str]


class Looking(Protocol):
    """The operations that need no runtime. They take a handle's facts, as `find` returns them, or its uid."""

    place: str
    """The store or server that this reads, for messages."""

    async def find(self, ids: Iterable[str], conversation: str | None) -> list[dict[str, Any]]:
        """Return the facts of the handles that these ids or uids name (`resolve_handle.py`)."""

    async def handles(self, **wanted: Unpack[HandleFilter]) -> dict[str, Any]:
        """Return `{"handles": [facts], "next"}`; `next` is the next page's `after`. By default, list the 50 newest."""

    async def handle(self, uid: str, *, keys: bool = False) -> dict[str, Any]:
        """Return a handle in full; its open keys only if asked for, and only from the store itself (K5)."""

    def talk(self, fact: dict[str, Any], want: "frames.Want") -> "AbstractAsyncContextManager[frames.Talk]":
        """Ask for a handle's output, its terminal, or to be sent something."""

    async def requests(self) -> tuple[list[dict[str, Any]], int]:
        """Return the open requests to the user, oldest first, and how many more there are than a server lists."""

    async def request(self, id: str) -> dict[str, Any]:
        """Return one open request. Raises `KeepholdError` if it is not open any more."""

    async def permissions(self) -> list[dict[str, Any]]:
        """Return the standing permissions, oldest first."""

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Return `{"conversations": [{"id","handles","live","updated","title","turn_open","parent"}], "next"}`."""


class Controls(Looking, Protocol):
    """All operations of commands."""

    async def abort(self, uid: str) -> Mapping[str, Any]:
        """Abort a handle as the user, and return the reply."""

    async def retry(self, uid: str) -> Mapping[str, Any]:
        """Repeat a call that was stopped with code `crash_loop`: `{"id", "uid", "retry_of"}` of the new handle."""

    async def wait(self, *, timeout: float | None = None, **groups: Unpack[WaitGroups]) -> Mapping[str, Any]:
        """Wait for handles, however long that takes, and return the answer of `await`."""

    async def decide(self, id: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decide an open request: `{"status": "taken" | "again" | "gone", "problem"}`."""

    async def revoke_permission(self, id: str) -> Mapping[str, Any]:
        """End a standing permission: `{"revoked": bool}`."""

    async def complete(self, key: str, resolution: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete a key's wait: `{"status", "terminal"}`."""

    async def revoke(self, conversation: str) -> Mapping[str, Any]:
        """Revoke a conversation's open keys: `{"revoked": n}`."""

    async def forget(self, conversation: str) -> Mapping[str, Any]:
        """Delete a conversation's transcript: `{"lines": n}`."""

    async def collect(self, *, older_than: float | None, dry_run: bool, vacuum: bool) -> Mapping[str, Any]:
        """Delete what retention would delete now (`retention.py`)."""
