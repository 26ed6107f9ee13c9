"""A store with something in every table that `keephold store check` looks at, and ways to break it."""

from tests.turn.calls import call, spawn, wait_all
from tests.unit.sqlite_stores import NOON

import keephold
from keephold import Call, Pending, Runtime
from keephold.store.base import Notified, TranscriptAppended

LARGE = "x" * 100_000
"""Output that does not fit into a row of SQLite's."""


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def approve(call: Call) -> Pending:
    """Waits for a result from outside."""
    await call.completion_key()
    return Pending(deadline=3600)


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def printing(call: Call) -> str:
    """Prints much."""
    call.emit(LARGE)
    return "done"


@keephold.tool(on_crash="replay")
async def stepping(call: Call) -> str:
    """Records a step."""

    async def made(given: object) -> object:
        return given

    await call.durable().run_json("make", 1, made)
    return "made"


async def make(url: str) -> None:
    async with Runtime([approve, printing, stepping], store=url) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("approve", "a"), spawn("printing", "p"), call("stepping")])
            await turn.run([wait_all("p")])
        note = Notified("main", "note", "info", "hello", NOON)
        await rt.registry.write((note, TranscriptAppended("main", "t", NOON, (("said", b"{}"),))))


BROKEN = {
    "unowned_call": "UPDATE handles SET parking = NULL WHERE id = 'a'",
    "parked_without_key": "UPDATE waits SET revoked = TRUE",
    "stopped_with_open_key": "UPDATE handles SET state_name = 'stopped', stopped_at = 1 WHERE id = 'a'",
    "stopped_with_owner": "UPDATE handles SET owner = 'x' WHERE id = 'p'",
    "contradicting_state": "UPDATE handles SET state_name = 'running' WHERE id = 'p'",
    "fence_not_positive": "UPDATE handles SET fence = 0 WHERE id = 'p'",
    "handle_and_tombstone": "INSERT INTO tombstones (uid, id, conversation, at) SELECT uid, id, 'main', 1 FROM handles",
    "journal_of_no_handle": "UPDATE journal SET handle = 99",
    "output_of_no_handle": "UPDATE outputs SET handle = 99",
    "key_of_no_handle": "UPDATE waits SET uid = 'x'",
    "key_without_secret": "UPDATE waits SET secret_id = 'x'",
    "missing_events": "DELETE FROM events WHERE seq = 3",
    "event_before_creation": "UPDATE events SET type = 'handle.created' WHERE type = 'handle.stopped'",
    "stopped_twice": "UPDATE events SET type = 'handle.stopped' WHERE type = 'handle.created'",
    "notification_of_no_handle": "UPDATE notifications SET uid = 'x'",
    "notification_of_no_conversation": "UPDATE notifications SET conversation = ''",
    "miscounted_queue": "UPDATE queues SET waiting = 7",
    "miscounted_handles": "DELETE FROM spawned",
    "batch_of_no_turn": "DELETE FROM turns",
    "lost_batch": "UPDATE turns SET open_batch = 99",
    "incomplete_transcript": "DELETE FROM transcripts",
    "line_of_no_conversation": "UPDATE transcripts SET conversation = 99",
}
"""By rule: what no keephold would do."""
