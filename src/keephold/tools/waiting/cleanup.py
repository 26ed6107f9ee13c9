"""`gc_wait_handles` and the archive: delete settled handles, by hand or by policy (W8).

Deleted handles are appended to the archive first, a line of JSON each, and only archived ones are deleted. A crash in
between archives them twice and loses nothing.
"""

import errno
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keephold.errors import KeepholdError
from keephold.handles.state import Reply, Stopped
from keephold.store.archive import is_within, outcome
from keephold.store.base import WAIT_KINDS, Collected, Kind, Record, Status, status_of
from keephold.text import instant, to_json
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting.tool import ENDS, Arguments, WaitToolHost, object_schema, wait_tool
from keephold.tools.waiting.view import TEXT, TYPES, duration, one_of, reply

_SETTLED: tuple[Status, ...] = ("completed", "failed", "timeout")
_NAMED = 100
"""Number of ids that a reply names."""

PARAMETERS = object_schema(
    olderThanMs=duration("Only those that settled longer ago than this, in milliseconds. Default: 0."),
    status=one_of([*_SETTLED, "all"], "Default: all that have settled."),
    type=one_of([*TYPES, "all"], "Default: all."),
    dryRun={"type": "boolean", "description": "Only say what would be removed. Default: false."},
)
RETURNS = reply(
    "success dryRun removedCount byStatus byType handleIds archived message?",
    handleIds={"type": "array", "items": TEXT, "description": f"The first {_NAMED} of them."},
)


def gc_tool(host: WaitToolHost) -> Tool:
    @wait_tool(host, PARAMETERS, RETURNS, hints=ENDS | {"title": "Remove settled wait handles"})
    async def gc_wait_handles(call: Call, arguments: Arguments) -> Reply:
        """Remove wait handles that have settled, and their results. Use it only to tidy up when you are asked to: old
        ones go by themselves, and results that are removed cannot be read again. Returns how many were removed, and the
        first ids.
        """
        registry = host.registry
        op = _op(call, arguments, registry.clock.now())
        dry = bool(arguments.get("dryRun"))
        records: list[Record] = []
        if dry:
            records += await registry.store.expiring(op)
        else:
            await registry.delete_expired(op, records.extend)
        gone = [record for record in records if record.stateful]  # one-shot calls were never visible
        answer: dict[str, Any] = {
            "success": True,
            "dryRun": dry,
            "removedCount": len(gone),
            "byStatus": dict(Counter(status_of(record.state) for record in gone)),
            "byType": dict(Counter(record.kind for record in gone)),
            "handleIds": [record.id for record in gone[:_NAMED]],
            "archived": registry.archive is not None and not dry,
        }
        if not gone and await registry.store.turn(call.conversation) is not None:
            answer["message"] = "Nothing goes while a turn of this conversation is open."
        return host.replies.object(answer)

    return gc_wait_handles


def _op(call: Call, arguments: Arguments, now: float) -> Collected:
    kind: Any = arguments.get("type") or "all"
    status: Any = arguments.get("status") or "all"
    kinds: tuple[Kind, ...] = WAIT_KINDS if kind == "all" else (kind,)
    return Collected(
        now - (arguments.get("olderThanMs") or 0) / 1000,
        now,
        limit=10_000,
        conversation=call.conversation,
        kinds=kinds,
        statuses=_SETTLED if status == "all" else (status,),
    )


class WaitArchive:
    """A file of JSON lines for wait handles alone."""

    def __init__(self, path: Path, places: Sequence[Path]) -> None:
        self._path = path
        self._places = places

    async def __call__(self, records: Sequence[Record]) -> None:
        """Append the wait handles among them. Raises `KeepholdError` if that cannot be done."""
        lines = [to_json(_line(record)) + b"\n" for record in records if record.stateful and record.kind != "tool"]
        if not lines:
            return
        try:
            self._append(b"".join(lines))
        except OSError as error:
            why = f"{self._path}: cannot be appended to: {error.strerror}; nothing was deleted ([wait_handles] archive)"
            raise KeepholdError(why, code="store_unavailable") from None

    def _append(self, data: bytes) -> None:
        # On the loop's thread: it happens once a minute at most, and the deletion must wait for the disk.
        if not is_within(self._path, self._places):  # a link may have come since the configuration was read
            raise OSError(errno.EACCES, "it is outside of the project's directory and the state directory")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _line(record: Record) -> dict[str, Any]:
    state = record.state
    assert isinstance(state, Stopped)
    return {
        "id": record.id,
        "uid": record.uid,
        "conversation": record.conversation,
        "type": record.kind,
        "status": status_of(state),
        "startTime": instant(state.created),
        "endTime": instant(state.stopped),
        "metadata": record.metadata or {},
        **outcome(state),
    }
