-- Rows that must never be found in a store. Each query returns the names for one sentence of `checking.py` a row.

-- name: unowned_call
-- A call that has not stopped has an owner, who runs it or is dead, or is parked.
SELECT uid FROM handles WHERE stopped_at IS NULL AND owner IS NULL AND parking IS NULL;

-- name: parked_without_key
-- A parked call has a key that can complete it, or its completion has arrived.
SELECT uid FROM handles h
WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL AND NOT resolved AND NOT EXISTS (
    SELECT 1 FROM waits w WHERE w.uid = h.uid AND w.kind = 'completion' AND w.resolution IS NULL AND NOT w.revoked
);

-- name: stopped_with_open_key
-- The end of a call resolves its completion key.
SELECT h.uid, w.key_id FROM waits w JOIN handles h ON h.uid = w.uid
WHERE h.stopped_at IS NOT NULL AND w.kind = 'completion' AND w.resolution IS NULL AND NOT w.revoked;

-- name: stopped_with_owner
-- A stopped call has no owner, unless its cancel hook has to be called.
SELECT uid, owner FROM handles WHERE stopped_at IS NOT NULL AND owner IS NOT NULL AND NOT hook_due;

-- name: contradicting_state
-- The state and the time at which a handle stopped agree.
SELECT uid, state_name FROM handles WHERE (state_name = 'stopped') <> (stopped_at IS NOT NULL);

-- name: fence_not_positive
-- Fencing numbers and attempts count from 1.
SELECT uid, fence, attempt FROM handles WHERE fence < 1 OR attempt < 1;

-- name: handle_and_tombstone
-- A handle is stored or has expired.
SELECT t.uid FROM tombstones t JOIN handles h ON h.uid = t.uid;

-- name: journal_of_no_handle
-- Journal lines belong to a handle.
SELECT DISTINCT handle FROM journal j WHERE NOT EXISTS (SELECT 1 FROM handles h WHERE h.number = j.handle);

-- name: output_of_no_handle
-- Stored output belongs to a handle.
SELECT handle FROM outputs o WHERE NOT EXISTS (SELECT 1 FROM handles h WHERE h.number = o.handle);

-- name: key_of_no_handle
-- A key belongs to a handle, or to the tombstone of one.
SELECT key_id FROM waits w
WHERE NOT EXISTS (SELECT 1 FROM handles h WHERE h.uid = w.uid)
  AND NOT EXISTS (SELECT 1 FROM tombstones t WHERE t.uid = w.uid);

-- name: key_without_secret
-- The secret that signed an open key is there.
SELECT key_id, secret_id FROM waits w
WHERE resolution IS NULL AND NOT revoked AND NOT EXISTS (SELECT 1 FROM secrets s WHERE s.id = w.secret_id);

-- name: missing_events
-- Events are numbered without gaps.
SELECT min(seq), max(seq), max(seq) - min(seq) + 1 - count(*) FROM events HAVING max(seq) - min(seq) + 1 <> count(*);

-- name: event_before_creation
-- The first event of a handle says that it was made.
SELECT e.uid, e.seq FROM events e WHERE e.type = 'handle.created' AND EXISTS (
    SELECT 1 FROM events b WHERE b.uid = e.uid AND b.seq < e.seq AND b.type <> 'handle.stepped'
);

-- name: stopped_twice
-- A handle stops once.
SELECT uid, count(*) FROM events WHERE type = 'handle.stopped' GROUP BY uid HAVING count(*) > 1;

-- name: notification_of_no_handle
-- A queued notification about a handle is deleted with it.
SELECT number, conversation, uid FROM notifications n
WHERE uid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM handles h WHERE h.uid = n.uid);

-- name: notification_of_no_conversation
-- A queued notification is for a conversation.
SELECT number FROM notifications WHERE conversation = '';

-- name: miscounted_queue
-- The count of queued notifications is right.
SELECT conversation, waiting, found FROM (
    SELECT q.conversation, q.waiting, (SELECT count(*) FROM notifications n WHERE n.conversation = q.conversation) found
    FROM queues q
) AS counts WHERE waiting <> found
UNION ALL
SELECT DISTINCT conversation, 0, 1 FROM notifications n
WHERE NOT EXISTS (SELECT 1 FROM queues q WHERE q.conversation = n.conversation);

-- name: miscounted_handles
-- The count of spawned handles is right.
SELECT conversation, sum(counted), sum(found) FROM (
    SELECT conversation, handles AS counted, 0 AS found FROM spawned
    UNION ALL
    SELECT conversation, 0, count(*) FROM handles WHERE stateful GROUP BY conversation
) AS both_of_them GROUP BY conversation HAVING sum(counted) <> sum(found);

-- name: batch_of_no_turn
-- A batch belongs to a turn.
SELECT conversation, turn, batch FROM batches b
WHERE NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation = b.conversation AND t.turn = b.turn);

-- name: lost_batch
-- The open batch of a turn is there.
SELECT conversation, turn, open_batch FROM turns t WHERE open_batch IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM batches b WHERE b.conversation = t.conversation AND b.turn = t.turn AND b.batch = t.open_batch
);

-- name: incomplete_transcript
-- A transcript has as many lines as its conversation says.
SELECT id, lines, found FROM (
    SELECT c.id, c.lines, (SELECT count(*) FROM transcripts t WHERE t.conversation = c.number) found FROM conversations c
) AS counts WHERE lines <> found;

-- name: line_of_no_conversation
-- A transcript line belongs to a conversation.
SELECT DISTINCT conversation FROM transcripts t
WHERE NOT EXISTS (SELECT 1 FROM conversations c WHERE c.number = t.conversation);
