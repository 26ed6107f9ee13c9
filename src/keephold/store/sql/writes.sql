-- The writes of the SQL stores, and the reads that decide about them; `reads.sql` has the rest. `queries.py` reads
-- both: a query begins with `-- name:` and ends with the next one; the line after the name says what it is for. Both
-- databases understand these; `dialect.sql` of each store has those that only one does, and may replace others.

-- name: count_commit
-- Count this transaction of this process, so that it can be found out whether it was committed.
UPDATE owners SET commits = commits + 1 WHERE owner = ? AND commits = ?;

-- name: counted
-- Whether this process has counted that many transactions.
SELECT 1 FROM owners WHERE owner = ? AND commits = ?;

-- name: recorded
-- Whether a journal line exists.
SELECT 1 FROM journal WHERE handle = (SELECT number FROM handles WHERE uid = ?) AND kind = ? AND name = ?;

-- name: add_owner
-- Add a process that has opened the store.
INSERT INTO owners (owner, commits) VALUES (?, 0);

-- name: counted_owners
-- Every process that has opened the store and was not swept up yet.
SELECT owner FROM owners;

-- name: remove_owner
-- Remove the counter of a dead process.
DELETE FROM owners WHERE owner = ?;

-- name: remove_requests
-- Remove requests to a dead process, and its own.
DELETE FROM requests WHERE sender = ?1 OR receiver = ?1;

-- name: open_turn
-- The open turn of a conversation.
SELECT turn, owner, batches, open_batch FROM turns WHERE conversation = ? AND ended_at IS NULL;

-- name: end_turn
-- End the turn, and with it its open batch.
UPDATE turns SET ended_at = ?, open_batch = NULL, carried = NULL WHERE conversation = ? AND turn = ? AND ended_at IS NULL;

-- name: release_turn
-- Give up an open turn of this process.
UPDATE turns SET owner = ? WHERE conversation = ? AND turn = ? AND owner = ? AND ended_at IS NULL;

-- name: begin_turn
-- Open the turn, owned by this process.
INSERT INTO turns (conversation, turn, owner, began_at) VALUES (?, ?, ?, ?)
ON CONFLICT (conversation, turn) DO UPDATE SET owner = excluded.owner, ended_at = NULL, carried = NULL;

-- name: carry
-- Note which notifications were handed out; nothing shows yet that they arrived.
UPDATE turns SET carried = ?, carried_by = ? WHERE conversation = ? AND ended_at IS NULL;

-- name: carried
-- The notifications that the open turn was handed last, and their carrier.
SELECT carried, carried_by FROM turns WHERE conversation = ? AND ended_at IS NULL AND carried IS NOT NULL {locked};

-- name: open_batch
-- Keep all that is needed to answer a batch later.
INSERT INTO batches (conversation, turn, batch, calls) VALUES (?, ?, ?, ?)
ON CONFLICT (conversation, turn, batch) DO UPDATE SET calls = excluded.calls, responses = NULL, notifications = NULL;

-- name: count_batch
-- Count the turn's batches, and open this one: what was handed out before has arrived.
UPDATE turns SET batches = CASE WHEN batches > ?1 THEN batches ELSE ?1 END, open_batch = ?1, carried = NULL
WHERE conversation = ?2 AND turn = ?3 AND ended_at IS NULL;

-- name: batch
-- The calls of a batch.
SELECT calls FROM batches WHERE conversation = ? AND turn = ? AND batch = ?;

-- name: answers
-- Keep a batch's responses, and the notifications delivered with them.
SELECT responses, notifications FROM batches WHERE conversation = ? AND turn = ? AND batch = ?;

-- name: answer_batch
-- A batch's responses, and the notifications delivered with them.
UPDATE batches SET responses = ?, notifications = ? WHERE conversation = ? AND turn = ? AND batch = ?;

-- name: close_batch
-- Close the batch.
UPDATE turns SET open_batch = NULL WHERE conversation = ? AND turn = ? AND open_batch = ?;

-- name: show_output
-- Note up to where a handle's output was shown: never backwards.
UPDATE handles SET cursor = ?2 WHERE uid = ?1 AND cursor < ?2;

-- name: register
-- Add a handle, unless its id is active or its uid exists.
INSERT INTO handles (
    uid, id, tool, conversation, turn, batch, position, call_id, kind, priority, stateful, state_name, status,
    stopped_at, owner, fence, attempt, next_attempt_at, cursor, deadline, parking, resources, metadata, progress, state,
    arguments, allowed, retry_of
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: named
-- Whether an id was ever used, as far as is known.
SELECT 1 FROM handles WHERE conversation = ? AND id = ? AND stateful LIMIT 1;

-- name: keep_output
-- Keep a handle's output, once no more will come.
INSERT INTO outputs (handle, kept, file) SELECT number, ?2, ?3 FROM handles WHERE uid = ?1
ON CONFLICT (handle) DO UPDATE SET kept = excluded.kept, file = excluded.file;

-- name: change
-- Set a state that is not final.
UPDATE handles SET state_name = ?, state = ? WHERE uid = ? AND fence = ? AND stopped_at IS NULL;

-- name: stop
-- Stop a call that is not parked, and remove its owner. Returns whether it has taken its completion key, and its
-- names for the notification.
UPDATE handles SET state_name = 'stopped', state = ?, status = ?, stopped_at = ?, owner = NULL, next_attempt_at = NULL
WHERE uid = ? AND fence = ? AND stopped_at IS NULL AND (owner IS NOT NULL OR parking IS NULL)
RETURNING keyed, conversation, id, tool;

-- name: stop_parked
-- Stop a parked call; it gets an owner if its hook is due.
UPDATE handles
SET state_name = 'stopped', state = ?, status = ?, stopped_at = ?, owner = ?, hook_due = ?, next_attempt_at = NULL,
    resolved = resolved OR ?
WHERE number = ?;

-- name: resolve_by_end
-- Resolve the completion key of a call that has stopped.
UPDATE waits SET resolution = ?, resolved_at = ?
WHERE uid = ? AND kind = 'completion' AND resolution IS NULL AND NOT revoked RETURNING key_id;

-- name: call
-- The columns that decide about an operation on a call.
SELECT number, uid, fence, owner, stopped_at, state, parking, keyed, resolved, hook_due, conversation, id, tool, kind,
    stateful
FROM handles WHERE uid = ? {locked};

-- name: conversation
-- The names of a handle for its notification.
SELECT conversation, id, tool FROM handles WHERE uid = ?;

-- name: rewrite
-- Replace arguments that a user has edited (P5), unless they are NULL; note what allowed the call, unless it is NULL.
UPDATE handles SET arguments = coalesce(?1, arguments), resources = CASE WHEN ?1 IS NULL THEN resources ELSE ?2 END,
    allowed = coalesce(?3, allowed)
WHERE number = ?4;

-- name: annotate
-- Annotate a handle; NULL leaves a column as it is.
UPDATE handles
SET progress = coalesce(?2, progress), priority = coalesce(?3, priority), metadata = coalesce(?4, metadata)
WHERE number = ?1;

-- name: claim
-- Take over a call. An attempt was cut short unless it had not started, was between two, or its process has run on.
UPDATE handles
SET owner = ?1, fence = fence + 1,
    attempt = attempt + CASE WHEN NOT ?2 AND state_name <> 'pending' AND next_attempt_at IS NULL
        AND coalesce(standing, '') <> 'queued' THEN 1 ELSE 0 END,
    deaths = deaths + CASE WHEN NOT ?2 AND state_name <> 'pending' AND next_attempt_at IS NULL
        AND coalesce(standing, 'alone') = 'alone' THEN 1 ELSE 0 END,
    state_name = ?3, state = ?4, standing = ?5
WHERE number = ?6;

-- name: count_deaths
-- Set how many deaths count against a call, and its standing (R8).
UPDATE handles SET deaths = ?, standing = ? WHERE uid = ? AND fence = ? AND stopped_at IS NULL;

-- name: make_ready
-- The current attempt of a call is ready (A9).
UPDATE handles SET ready = attempt WHERE number = ?;

-- name: copy_journal
-- Copy the journal of a call for the handle that repeats it.
INSERT INTO journal (handle, kind, name, digest, value, ok, input)
SELECT (SELECT number FROM handles WHERE uid = ?), kind, name, digest, value, ok, input FROM journal
WHERE handle = (SELECT number FROM handles WHERE uid = ?) ORDER BY number;

-- name: release
-- Remove the owner.
UPDATE handles SET owner = NULL, deaths = 0, standing = NULL WHERE number = ?;

-- name: release_running
-- Give the call to an owner that is dead; the next claim counts no death.
UPDATE handles SET owner = ?, deaths = 0, standing = 'released' WHERE number = ?;

-- name: attempt
-- Plan or begin another attempt.
UPDATE handles SET attempt = ?, next_attempt_at = ? WHERE number = ?;

-- name: forget_errors
-- Delete recorded errors, which the next attempt does not replay (R5).
DELETE FROM journal WHERE handle = ? AND NOT ok;

-- name: open_wait
-- Add a key; it may have been taken before.
INSERT INTO waits (key_id, uid, conversation, kind, name, secret_id) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key_id) DO NOTHING;

-- name: take_completion_key
-- Note that the call has its completion key, and the terms on which it is parked if its owner dies.
UPDATE handles SET keyed = TRUE, parking = coalesce(?2, parking), deadline = CASE WHEN ?2 IS NULL THEN deadline ELSE ?3 END
WHERE number = ?1;

-- name: park
-- Park the call, without an owner.
UPDATE handles
SET owner = NULL, parking = ?, deadline = ?, next_attempt_at = NULL, deaths = 0, standing = NULL
WHERE number = ?;

-- name: completion
-- How a call's completion key was resolved, if it has one.
SELECT resolution, resolved_at, revoked FROM waits WHERE uid = ? AND kind = 'completion' ORDER BY number LIMIT 1;

-- name: resolve
-- Resolve a wait; only the first resolution does.
UPDATE waits SET resolution = ?, resolved_at = ? WHERE key_id = ? AND resolution IS NULL AND NOT revoked
RETURNING uid, kind, conversation;

-- name: completed
-- Note that the completion of a call has arrived. If the call is held, a runtime that has the tool takes it.
UPDATE handles SET resolved = TRUE WHERE number = ?;

-- name: revoke
-- Revoke the conversation's open keys.
UPDATE waits SET revoked = TRUE, resolved_at = ? WHERE conversation = ? AND resolution IS NULL AND NOT revoked
RETURNING key_id, uid, kind;

-- name: emit
-- Add the next event of a process.
INSERT INTO process_events (process, sequence, type, payload, at)
SELECT ?1, coalesce(max(sequence), 0) + 1, ?2, ?3, ?4 FROM process_events WHERE process = ?1 RETURNING sequence;

-- name: promote
-- Give a one-shot call a name, unless that is active.
UPDATE handles SET stateful = TRUE, id = ?1 WHERE uid = ?2 AND (stopped_at IS NOT NULL OR NOT EXISTS (
    SELECT 1 FROM handles h
    WHERE h.conversation = handles.conversation AND h.id = ?1 AND h.stateful AND h.stopped_at IS NULL AND h.uid <> ?2
));

-- name: call_hook
-- Note that the hook has run, and remove the owner.
UPDATE handles SET hook_due = FALSE, owner = NULL WHERE uid = ? AND hook_due;

-- name: notify
-- Queue a notification. Returns its number.
INSERT INTO notifications (conversation, kind, level, message, at, uid, carriers) VALUES (?, ?, ?, ?, ?, ?, ?)
RETURNING number;

-- name: renew
-- Change the message of a handle's queued notification of one kind.
UPDATE notifications SET message = ?, at = ? WHERE uid = ? AND kind = ? AND conversation = ? RETURNING number, level;

-- name: waiting
-- How many notifications a conversation has queued.
SELECT waiting FROM queues WHERE conversation = ?;

-- name: drop_oldest
-- Drop the oldest notifications of a level (N6).
DELETE FROM notifications WHERE number IN (
    SELECT number FROM notifications WHERE conversation = ? AND level = ? ORDER BY number LIMIT ?
) RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: count_dropped
-- Count dropped notifications, and note when the last was dropped.
UPDATE queues SET dropped = dropped + ?, dropped_at = ? WHERE conversation = ?;

-- name: take_back
-- Remove notifications of what was shown (N3).
DELETE FROM notifications WHERE uid = ? AND conversation = ?
RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: take_back_kind
-- The same for one kind.
DELETE FROM notifications WHERE uid = ? AND kind = ? AND conversation = ?
RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: remove_notifications
-- Remove the notifications of deleted handles.
DELETE FROM notifications WHERE uid {among} RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: queue
-- Whether a conversation has notifications, and how many were dropped.
SELECT dropped, dropped_at FROM queues WHERE conversation = ? {locked};

-- name: tell_dropped
-- Reset the count of dropped notifications, which is being delivered.
UPDATE queues SET dropped = 0 WHERE conversation = ?;

-- name: deliver
-- Take the notifications that may ride on one of these carriers.
DELETE FROM notifications WHERE conversation = ? AND (carriers & ?) <> 0
RETURNING number, conversation, kind, level, message, at, uid, carriers;

-- name: inquire
-- Add a finished inquiry.
INSERT INTO inquiries (id, conversation, turn, uid, at, request, answer, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: request
-- Add a request to the owner of a handle.
INSERT INTO requests (id, uid, sender, receiver, body) VALUES (?, ?, ?, ?, ?);

-- name: reply
-- Answer a request. Returns the handle it was about.
UPDATE requests SET reply = ? WHERE id = ? RETURNING uid;

-- name: post
-- Let other processes see something of this one, also in place of a dead process.
INSERT INTO posts (id, kind, owner, at, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, at = excluded.at, body = excluded.body
WHERE posts.owner = excluded.owner OR posts.owner = ?;

-- name: posted
-- The post of an id.
SELECT id, kind, owner, at, body FROM posts WHERE id = ?;

-- name: take_down
-- Remove what this process has posted.
DELETE FROM posts WHERE id = ? AND owner = ?;

-- name: remove_posts
-- Remove what a dead process has posted.
DELETE FROM posts WHERE owner = ?;

-- name: close_request
-- Remove a request; on demand only if it has no answer yet.
DELETE FROM requests WHERE id = ? AND (NOT ? OR reply IS NULL);

-- name: add_secret
-- Add a secret, with which new keys are made.
INSERT INTO secrets (id, secret, at) VALUES (?, ?, ?);

-- name: expired
-- Handles whose retention is over, in conversations without a turn, or with one that was left; the file their output is
-- in, if there is one. `listing.py` adds conditions, and ORDER BY.
SELECT h.number, h.uid, CASE WHEN h.stateful THEN h.id END AS id, h.conversation, o.file
FROM handles h LEFT JOIN outputs o ON o.handle = h.number
WHERE h.stopped_at < ? AND h.stopped_at IS NOT NULL AND NOT h.hook_due
  AND NOT EXISTS (
    SELECT 1 FROM turns t WHERE t.conversation = h.conversation AND t.ended_at IS NULL
      AND NOT t.conversation {among}
  )

-- name: old_turns
-- Open turns that began before a time, in conversations where every call stopped before that time.
SELECT t.conversation, t.turn, t.owner FROM turns t WHERE t.ended_at IS NULL AND t.began_at < ?1
  AND NOT EXISTS (
    SELECT 1 FROM handles h WHERE h.conversation = t.conversation AND (h.stopped_at IS NULL OR h.stopped_at >= ?1)
  );

-- name: add_tombstones
-- Add the tombstones of those handles that could be named, or whose keys may still be used.
INSERT INTO tombstones (uid, id, conversation, at)
SELECT h.uid, CASE WHEN h.stateful THEN h.id END, h.conversation, ?1 FROM handles h
WHERE h.uid {among} AND (h.stateful OR EXISTS (SELECT 1 FROM waits w WHERE w.uid = h.uid))
ORDER BY h.stopped_at, h.number;

-- name: remove_handles
-- Delete expired handles.
DELETE FROM handles WHERE uid {among};

-- name: remove_outputs
-- Delete the outputs of expired handles.
DELETE FROM outputs WHERE handle IN (SELECT h.number FROM handles h WHERE h.uid {among});

-- name: remove_journals
-- Delete the journals of expired handles.
DELETE FROM journal WHERE handle IN (SELECT h.number FROM handles h WHERE h.uid {among});

-- name: remove_process_events
-- Delete the process events of expired handles.
DELETE FROM process_events WHERE process {among};

-- name: add_litter
-- Add a file to be removed after the commit.
INSERT INTO litter (file) VALUES (?) ON CONFLICT (file) DO NOTHING;

-- name: litter
-- Files that were to be removed.
SELECT file FROM litter LIMIT 10000;

-- name: remove_litter
-- The file is removed.
DELETE FROM litter WHERE file = ?;

-- name: remove_old_tombstones
-- Delete tombstones after 90 days.
DELETE FROM tombstones WHERE number IN (SELECT number FROM tombstones WHERE at < ? ORDER BY at LIMIT ?) RETURNING uid;

-- name: remove_surplus_tombstones
-- Keep only the newest tombstones of a conversation.
DELETE FROM tombstones WHERE conversation = ?1 AND number <= (
    SELECT number FROM tombstones WHERE conversation = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2
) RETURNING uid;

-- name: remove_waits
-- Delete the keys of deleted tombstones (D5).
DELETE FROM waits WHERE uid {among};

-- name: remove_old_turns
-- Delete turns that ended longer than the retention ago.
DELETE FROM turns WHERE number IN (
    SELECT number FROM turns WHERE ended_at < ? AND ended_at IS NOT NULL ORDER BY ended_at LIMIT ?
) RETURNING conversation, turn;

-- name: remove_batches
-- Delete the batches of such a turn.
DELETE FROM batches WHERE conversation = ? AND turn = ?;

-- name: remove_old_inquiries
-- Delete the inquiries of such a turn. A call that outlives its turn may have made some since: those are deleted later.
DELETE FROM inquiries WHERE number IN (
    SELECT number FROM inquiries i WHERE at < ?
      AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation = i.conversation AND t.turn = i.turn)
    ORDER BY at LIMIT ?
);

-- name: say
-- Count new transcript lines. Returns the conversation's number, and how many lines it has now.
INSERT INTO conversations (id, created, updated, lines, metadata) VALUES (?1, ?2, ?2, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET lines = conversations.lines + ?3,
    updated = CASE WHEN conversations.updated > ?2 THEN conversations.updated ELSE ?2 END
RETURNING number, lines;

-- name: add_line
-- Add one transcript line.
INSERT INTO transcripts (conversation, line, turn, kind, at, body) VALUES (?, ?, ?, ?, ?, ?);

-- name: describe
-- Set a conversation's metadata.
INSERT INTO conversations (id, created, updated, lines, metadata) VALUES (?1, ?2, ?2, 0, ?3)
ON CONFLICT (id) DO UPDATE SET metadata = ?3,
    updated = CASE WHEN conversations.updated > ?2 THEN conversations.updated ELSE ?2 END;

-- name: forget
-- Delete a conversation, and its transcript by the trigger.
DELETE FROM conversations WHERE id = ?;

-- name: kept_events
-- The first event that is kept, and the last that ever was, which is always kept.
SELECT (SELECT min(seq) FROM events), coalesce((SELECT max(seq) FROM events), 0);

-- name: remove_old_events
-- Delete events below a number, up to the first one that is not old; the last one stays.
DELETE FROM events WHERE seq < coalesce((SELECT min(seq) FROM events WHERE seq < ?1 AND at >= ?2), ?1)
  AND seq < (SELECT max(seq) FROM events);

-- name: remove_events
-- Delete events below a number.
DELETE FROM events WHERE seq < ?;
