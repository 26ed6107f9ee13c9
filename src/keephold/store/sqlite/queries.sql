-- What SqliteStore writes into its database, and what it reads to decide about that; `reads.sql` has the rest. `sql.py`
-- reads both files: a query begins with `-- name:` and ends with the next one; the line after the name says what it is
-- for.

-- name: count_commit
-- Counts this transaction of ours, so that it can be told whether it happened.
UPDATE owners SET commits = commits + 1 WHERE owner = ? AND commits = ?;

-- name: counted
-- Whether that many transactions of ours have been counted.
SELECT 1 FROM owners WHERE owner = ? AND commits = ?;

-- name: recorded
-- Whether a line of a journal is there.
SELECT 1 FROM journal WHERE handle = (SELECT number FROM handles WHERE uid = ?) AND kind = ? AND name = ?;

-- name: add_owner
-- A process that opened the store.
INSERT INTO owners (owner, commits) VALUES (?, 0);

-- name: counted_owners
-- Everyone who opened the store and was not swept up yet.
SELECT owner FROM owners;

-- name: remove_owner
-- A dead process needs no counter.
DELETE FROM owners WHERE owner = ?;

-- name: remove_requests
-- Nobody will answer the requests to a dead process or wait for the replies to its own.
DELETE FROM requests WHERE sender = ?1 OR receiver = ?1;

-- name: open_turn
-- The open turn of a conversation.
SELECT turn, owner, batches, open_batch FROM turns WHERE conversation = ? AND ended_at IS NULL;

-- name: end_turn
-- The turn is over, and with it its open batch.
UPDATE turns SET ended_at = ?, open_batch = NULL, carried = NULL WHERE conversation = ? AND turn = ? AND ended_at IS NULL;

-- name: begin_turn
-- The turn is open and ours.
INSERT INTO turns (conversation, turn, owner, began_at) VALUES (?, ?, ?, ?)
ON CONFLICT (conversation, turn) DO UPDATE SET owner = excluded.owner, ended_at = NULL, carried = NULL;

-- name: carry
-- This news was handed out; nothing shows yet that it arrived.
UPDATE turns SET carried = ?, carried_by = ? WHERE conversation = ? AND ended_at IS NULL;

-- name: carried
-- The news that the open turn was handed last, and what carried it.
SELECT carried, carried_by FROM turns WHERE conversation = ? AND ended_at IS NULL AND carried IS NOT NULL;

-- name: open_batch
-- All that is needed to answer a batch later.
INSERT INTO batches (conversation, turn, batch, calls) VALUES (?, ?, ?, ?)
ON CONFLICT (conversation, turn, batch) DO UPDATE SET calls = excluded.calls, responses = NULL, notifications = NULL;

-- name: count_batch
-- The turn has had that many batches, and this one is open: what was handed out before has arrived.
UPDATE turns SET batches = max(batches, ?1), open_batch = ?1, carried = NULL
WHERE conversation = ?2 AND turn = ?3 AND ended_at IS NULL;

-- name: batch
-- The calls of a batch.
SELECT calls FROM batches WHERE conversation = ? AND turn = ? AND batch = ?;

-- name: answers
-- What a batch was answered, and the news that rode on it.
SELECT responses, notifications FROM batches WHERE conversation = ? AND turn = ? AND batch = ?;

-- name: answer_batch
-- What a batch was answered, and the news that rode on it.
UPDATE batches SET responses = ?, notifications = ? WHERE conversation = ? AND turn = ? AND batch = ?;

-- name: close_batch
-- The batch is not open any more.
UPDATE turns SET open_batch = NULL WHERE conversation = ? AND turn = ? AND open_batch = ?;

-- name: show_output
-- Up to where a handle's output was shown: never backwards.
UPDATE handles SET cursor = ?2 WHERE uid = ?1 AND cursor < ?2;

-- name: register
-- A handle exists.
INSERT INTO handles (
    uid, id, tool, conversation, turn, batch, position, call_id, kind, priority, stateful, state_name, status,
    stopped_at, owner, fence, attempt, next_attempt_at, cursor, deadline, parking, resources, metadata, progress, state,
    arguments
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: named
-- Whether an id was ever used, as far as is known.
SELECT 1 FROM handles WHERE conversation = ? AND id = ? AND stateful LIMIT 1;

-- name: keep_output
-- Where a handle's output is, once no more will come.
INSERT INTO outputs (handle, kept, file) SELECT number, ?2, ?3 FROM handles WHERE uid = ?1
ON CONFLICT (handle) DO UPDATE SET kept = excluded.kept, file = excluded.file;

-- name: change
-- A state that is not the last one.
UPDATE handles SET state_name = ?, state = ? WHERE uid = ? AND fence = ? AND stopped_at IS NULL;

-- name: stop
-- The end of a call that is not parked: nobody owns it any more. Tells whether it has taken its completion key, and where
-- news of it goes.
UPDATE handles SET state_name = 'stopped', state = ?, status = ?, stopped_at = ?, owner = NULL, next_attempt_at = NULL
WHERE uid = ? AND fence = ? AND stopped_at IS NULL AND (owner IS NOT NULL OR parking IS NULL)
RETURNING keyed, conversation, id, tool;

-- name: stop_parked
-- The end of a parked call; somebody owns it on if its hook is due.
UPDATE handles
SET state_name = 'stopped', state = ?, status = ?, stopped_at = ?, owner = ?, hook_due = ?, next_attempt_at = NULL,
    resolved = resolved OR ?
WHERE number = ?;

-- name: resolve_by_end
-- The end of a call resolves the completion key it had taken.
UPDATE waits SET resolution = ?, resolved_at = ?
WHERE uid = ? AND kind = 'completion' AND resolution IS NULL AND NOT revoked RETURNING key_id;

-- name: call
-- What decides about an operation on a call.
SELECT number, uid, fence, owner, stopped_at, state, parking, keyed, resolved, hook_due, conversation, id, tool, kind,
    stateful
FROM handles WHERE uid = ?;

-- name: conversation
-- Where news of a handle goes.
SELECT conversation, id, tool FROM handles WHERE uid = ?;

-- name: rewrite
-- A person edited the arguments (P5).
UPDATE handles SET arguments = ?, resources = ? WHERE number = ?;

-- name: annotate
-- What is said about a handle, where something is.
UPDATE handles
SET progress = coalesce(?2, progress), priority = coalesce(?3, priority), metadata = coalesce(?4, metadata)
WHERE number = ?1;

-- name: claim
-- The call is ours. An attempt was cut short unless it had not started, or was between two.
UPDATE handles
SET owner = ?, fence = fence + 1, attempt = attempt + (state_name <> 'pending' AND next_attempt_at IS NULL),
    state_name = ?, state = ?
WHERE number = ?;

-- name: release
-- Nobody runs it any more.
UPDATE handles SET owner = NULL WHERE number = ?;

-- name: attempt
-- Another attempt is to come, or begins.
UPDATE handles SET attempt = ?, next_attempt_at = ? WHERE number = ?;

-- name: forget_errors
-- Recorded errors are not replayed by the next attempt (R5).
DELETE FROM journal WHERE handle = ? AND NOT ok;

-- name: record_step
-- A line of a call's journal, if the fencing number is right.
INSERT INTO journal (handle, kind, name, digest, value, ok, input)
SELECT number, ?, ?, ?, ?, ?, ? FROM handles WHERE uid = ? AND fence = ? AND stopped_at IS NULL;

-- name: open_wait
-- A key was taken; it may have been taken before.
INSERT INTO waits (key_id, uid, conversation, kind, name, secret_id) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key_id) DO NOTHING;

-- name: take_completion_key
-- The call has its completion key, and perhaps counts as parked if its owner dies.
UPDATE handles SET keyed = 1, parking = coalesce(?2, parking), deadline = CASE WHEN ?2 IS NULL THEN deadline ELSE ?3 END
WHERE number = ?1;

-- name: park
-- The call waits for its completion; nobody owns it.
UPDATE handles SET owner = NULL, parking = ?, deadline = ?, next_attempt_at = NULL WHERE number = ?;

-- name: completion
-- How a call's completion key was resolved, if it has one.
SELECT resolution, resolved_at, revoked FROM waits WHERE uid = ? AND kind = 'completion' ORDER BY number LIMIT 1;

-- name: resolve
-- Somebody resolves a wait; the first one does.
UPDATE waits SET resolution = ?, resolved_at = ? WHERE key_id = ? AND resolution IS NULL AND NOT revoked
RETURNING uid, kind, conversation;

-- name: completed
-- The completion of a call is there. If the call is held, a runtime that has the tool is to take it.
UPDATE handles SET resolved = 1 WHERE number = ?;

-- name: revoke
-- The conversation's open keys are worth nothing any more.
UPDATE waits SET revoked = 1, resolved_at = ? WHERE conversation = ? AND resolution IS NULL AND NOT revoked
RETURNING key_id, uid, kind;

-- name: emit
-- The next event of a process.
INSERT INTO process_events (process, sequence, type, payload, at)
SELECT ?1, coalesce(max(sequence), 0) + 1, ?2, ?3, ?4 FROM process_events WHERE process = ?1 RETURNING sequence;

-- name: expose
-- A one-shot call gets a name.
UPDATE handles SET stateful = 1, id = ? WHERE uid = ?;

-- name: call_hook
-- The hook has run; nobody owns the call any more.
UPDATE handles SET hook_due = 0, owner = NULL WHERE uid = ? AND hook_due;

-- name: notify
-- Queues news.
INSERT INTO notifications (conversation, kind, level, message, at, uid, carriers) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: renew
-- News of one kind of a handle, if some is queued, says something else now.
UPDATE notifications SET message = ?, at = ? WHERE uid = ? AND kind = ? AND conversation = ? RETURNING number, level;

-- name: waiting
-- How much news waits in a conversation.
SELECT waiting FROM queues WHERE conversation = ?;

-- name: drop_oldest
-- The oldest news of a level goes (N6).
DELETE FROM notifications WHERE number IN (
    SELECT number FROM notifications WHERE conversation = ? AND level = ? ORDER BY number LIMIT ?
) RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: count_dropped
-- How much news went because too much waited, and when some last did.
UPDATE queues SET dropped = dropped + ?, dropped_at = ? WHERE conversation = ?;

-- name: take_back
-- News of what was shown is no news (N3).
DELETE FROM notifications WHERE uid = ? AND conversation = ?
RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: take_back_kind
-- The same for one kind of it.
DELETE FROM notifications WHERE uid = ? AND kind = ? AND conversation = ?
RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: remove_notifications
-- News of a handle whose retention is over.
DELETE FROM notifications WHERE uid = ? RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: queue
-- Whether a conversation has news, and how much of it went.
SELECT dropped, dropped_at FROM queues WHERE conversation = ?;

-- name: tell_dropped
-- It is being told how much went.
UPDATE queues SET dropped = 0 WHERE conversation = ?;

-- name: deliver
-- News that may ride on one of these carriers is delivered.
DELETE FROM notifications WHERE conversation = ? AND carriers & ?
RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: inquire
-- An inquiry that is over.
INSERT INTO inquiries (id, conversation, turn, uid, at, request, answer, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: request
-- Something that only the owner of a handle can do.
INSERT INTO requests (id, uid, sender, receiver, body) VALUES (?, ?, ?, ?, ?);

-- name: reply
-- The answer to a request. Tells the handle it was about.
UPDATE requests SET reply = ? WHERE id = ? RETURNING uid;

-- name: close_request
-- Nobody waits for it any more.
DELETE FROM requests WHERE id = ?;

-- name: add_secret
-- New keys are made with this one.
INSERT INTO secrets (id, secret, at) VALUES (?, ?, ?);

-- name: expired
-- Handles whose retention is over, in conversations without a turn; the file their output is in, if there is one.
-- `retention.py` adds conditions, and ORDER BY.
SELECT h.number, h.uid, CASE WHEN h.stateful THEN h.id END, h.conversation, o.file
FROM handles h LEFT JOIN outputs o ON o.handle = h.number
WHERE h.stopped_at < ? AND h.stopped_at IS NOT NULL AND NOT h.hook_due
  AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation = h.conversation AND t.ended_at IS NULL)

-- name: add_tombstone
-- What is left of a handle that could be named, or whose keys may still be used by somebody.
INSERT INTO tombstones (uid, id, conversation, at) SELECT ?1, ?2, ?3, ?4
WHERE ?2 IS NOT NULL OR EXISTS (SELECT 1 FROM waits WHERE uid = ?1);

-- name: remove_handle
-- Its retention is over.
DELETE FROM handles WHERE number = ?;

-- name: remove_output
-- Its retention is over.
DELETE FROM outputs WHERE handle = ?;

-- name: remove_journal
-- Its retention is over.
DELETE FROM journal WHERE handle = ?;

-- name: remove_process_events
-- Its retention is over.
DELETE FROM process_events WHERE process = ?;

-- name: add_litter
-- A file to be removed after the commit.
INSERT OR IGNORE INTO litter (file) VALUES (?);

-- name: litter
-- Files that were to be removed.
SELECT file FROM litter LIMIT 10000;

-- name: remove_litter
-- The file is gone.
DELETE FROM litter WHERE file = ?;

-- name: remove_old_tombstones
-- After 90 days even the tombstone goes.
DELETE FROM tombstones WHERE number IN (SELECT number FROM tombstones WHERE at < ? ORDER BY at LIMIT ?) RETURNING uid;

-- name: remove_surplus_tombstones
-- A conversation keeps its newest tombstones only.
DELETE FROM tombstones WHERE conversation = ?1 AND number <= (
    SELECT number FROM tombstones WHERE conversation = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2
) RETURNING uid;

-- name: remove_waits
-- Keys are known as long as their call's row or tombstone is (D5).
DELETE FROM waits WHERE uid = ?;

-- name: remove_old_turns
-- What was said in turns that are over for longer than retention.
DELETE FROM turns WHERE number IN (
    SELECT number FROM turns WHERE ended_at < ? AND ended_at IS NOT NULL ORDER BY ended_at LIMIT ?
) RETURNING conversation, turn;

-- name: remove_batches
-- The batches of such a turn.
DELETE FROM batches WHERE conversation = ? AND turn = ?;

-- name: remove_old_inquiries
-- The inquiries of such a turn. A call that outlives its turn may have made some since: those are old enough later.
DELETE FROM inquiries WHERE number IN (
    SELECT number FROM inquiries i WHERE at < ?
      AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation = i.conversation AND t.turn = i.turn)
    ORDER BY at LIMIT ?
);

-- name: say
-- A conversation has that many lines more; which one it is, and how many it has now.
INSERT INTO conversations (id, created, updated, lines, metadata) VALUES (?1, ?2, ?2, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET updated = max(updated, ?2), lines = lines + ?3 RETURNING number, lines;

-- name: add_line
-- One of them.
INSERT INTO transcripts (conversation, line, turn, kind, at, body) VALUES (?, ?, ?, ?, ?, ?);

-- name: describe
-- All that is said about a conversation.
INSERT INTO conversations (id, created, updated, lines, metadata) VALUES (?1, ?2, ?2, 0, ?3)
ON CONFLICT (id) DO UPDATE SET updated = max(updated, ?2), metadata = ?3;

-- name: forget
-- A conversation goes, and its transcript by the trigger.
DELETE FROM conversations WHERE id = ?;

-- name: add_event
-- What happened. Where its conversation is not known, it is that of its handle.
INSERT INTO events (at, type, conversation, uid, data) VALUES (?, ?, ?, ?, ?);

-- name: kept_events
-- The first event that is kept, and the last that ever was, which is always kept.
SELECT (SELECT min(seq) FROM events), coalesce((SELECT max(seq) FROM events), 0);

-- name: remove_old_events
-- Events below a number go, up to the first one that is not old; the last one stays.
DELETE FROM events WHERE seq < min(?1, coalesce((SELECT min(seq) FROM events WHERE seq < ?1 AND at >= ?2), ?1))
  AND seq < (SELECT max(seq) FROM events);

-- name: remove_events
-- Events below a number go.
DELETE FROM events WHERE seq < ?;
