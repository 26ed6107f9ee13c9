-- The reads of the SQL stores that serve callers. See `writes.sql`.

-- name: records
-- The columns of a handle, for all queries that return handles; they add WHERE and ORDER BY.
SELECT h.uid, h.id, h.tool, h.conversation, h.turn, h.batch, h.position, h.call_id, h.stateful, h.state, h.arguments,
    h.kind, h.priority, h.metadata, h.progress, h.resources, h.owner, h.fence, h.attempt, h.next_attempt_at,
    h.deaths, h.standing, h.retry_of, h.parking, h.cursor, o.kept, h.allowed, h.ready
FROM handles h LEFT JOIN outputs o ON o.handle = h.number

-- name: where_uid
-- One handle.
WHERE h.uid = ?;

-- name: where_named
-- The newest handle of an id.
WHERE h.conversation = ? AND h.id = ? AND h.stateful ORDER BY h.number DESC LIMIT 1;

-- name: where_called
-- The newest one-shot call of a label.
WHERE h.conversation = ? AND h.call_id = ? AND NOT h.stateful ORDER BY h.number DESC LIMIT 1;

-- name: where_owned
-- The calls of an owner.
WHERE h.owner = ? AND h.owner IS NOT NULL AND h.uid > ? ORDER BY h.uid LIMIT ?;

-- name: where_free
-- Cancelled calls whose hook is due and held calls that are resolved, without an owner.
WHERE h.number IN (
    SELECT number FROM handles WHERE owner IS NULL AND hook_due AND uid > ?1
    UNION ALL
    SELECT number FROM handles
    WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL AND resolved AND uid > ?1
) ORDER BY h.uid LIMIT ?2;

-- name: where_holding
-- Parked calls that hold resources.
WHERE h.owner IS NULL AND h.parking IS NOT NULL AND h.stopped_at IS NULL AND h.resources IS NOT NULL ORDER BY h.uid;

-- name: where_due
-- Parked calls whose deadline has passed.
WHERE h.owner IS NULL AND h.parking IS NOT NULL AND h.stopped_at IS NULL AND NOT h.resolved AND h.deadline IS NOT NULL
  AND h.deadline <= ?
ORDER BY h.deadline LIMIT ?;

-- name: where_among
-- The handles of these uids.
WHERE h.uid {among};

-- name: next_due
-- The next deadline.
SELECT min(deadline) FROM handles
WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL AND NOT resolved AND deadline IS NOT NULL
  AND deadline > ?;

-- name: call_owners
-- Every owner of a call: one step in the index for each, not for each call.
WITH RECURSIVE found (owner) AS (
    SELECT min(owner) FROM handles WHERE owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(owner) FROM handles WHERE owner IS NOT NULL AND owner > found.owner) FROM found
    WHERE found.owner IS NOT NULL
)
SELECT owner FROM found WHERE owner IS NOT NULL;

-- name: tally
-- How many spawned handles a conversation has of each kind and status.
SELECT kind, status, count(*) FROM handles WHERE conversation = ? AND stateful GROUP BY status, kind;

-- name: tally_timers
-- And how many one-shot timers that have not stopped.
SELECT 'timer', 'pending', count(*) FROM handles
WHERE conversation = ? AND kind = 'timer' AND NOT stateful AND stopped_at IS NULL HAVING count(*) > 0;

-- name: tombstone_of
-- The tombstone of a handle.
SELECT uid, at FROM tombstones WHERE uid = ?;

-- name: tombstone_anywhere
-- The newest tombstone of an id in any conversation. The index begins with the conversation, so each is looked into.
WITH RECURSIVE place (name) AS (
    SELECT min(conversation) FROM tombstones WHERE id IS NOT NULL
    UNION ALL
    SELECT (SELECT min(conversation) FROM tombstones WHERE conversation > name AND id IS NOT NULL)
    FROM place WHERE name IS NOT NULL
)
SELECT t.uid, t.at FROM place JOIN tombstones t ON t.conversation = name AND t.id = ? AND t.id IS NOT NULL
ORDER BY t.at DESC LIMIT 1;

-- name: tombstone
-- The newest tombstone of an id.
SELECT uid, at FROM tombstones WHERE conversation = ? AND id = ? AND id IS NOT NULL ORDER BY number DESC LIMIT 1;

-- name: journal
-- A call's journal, as it was written.
SELECT kind, name, digest, value, ok, input FROM journal WHERE handle = (SELECT number FROM handles WHERE uid = ?)
ORDER BY number;

-- name: journal_count
-- How many lines a call's journal has, without traces.
SELECT count(*) FROM journal WHERE handle = (SELECT number FROM handles WHERE uid = ?) AND kind <> 'trace';

-- name: journal_end
-- Lines of a journal before its last ones, newest first, without traces. They are chosen in the index.
SELECT kind, name, digest, value, ok, input FROM journal WHERE number IN (
    SELECT number FROM journal WHERE handle = (SELECT number FROM handles WHERE uid = ?) AND kind <> 'trace'
    ORDER BY number DESC LIMIT ? OFFSET ?
) ORDER BY number DESC;

-- name: step_times
-- When the last steps of a call were recorded, newest first. Its other events, which are in an index, say where to stop.
SELECT data, at FROM events
WHERE seq > (SELECT coalesce(min(seq), 0) FROM events WHERE uid = ?1 AND uid IS NOT NULL AND type <> 'handle.stepped')
  AND uid = ?1 AND type = 'handle.stepped'
ORDER BY seq DESC LIMIT ?2 OFFSET ?3;

-- name: waits
-- The waits of a call.
SELECT key_id, uid, conversation, kind, name, secret_id, resolution, revoked FROM waits WHERE uid = ? ORDER BY number;

-- name: open_waits_beyond
-- Open waits of calls that have not stopped, of conversations after that one.
SELECT w.key_id, w.uid, w.conversation, w.kind, w.name, w.secret_id, w.resolution, w.revoked
FROM {open_waits} AND w.conversation > ? ORDER BY w.conversation, w.number LIMIT ?;

-- name: open_waits_in
-- The same of one conversation, after the one of a number.
SELECT w.key_id, w.uid, w.conversation, w.kind, w.name, w.secret_id, w.resolution, w.revoked
FROM {open_waits} AND w.conversation = ? AND w.number > ? ORDER BY w.number LIMIT ?;

-- name: count_open_waits
-- How many open waits conversations have.
SELECT w.conversation, count(*) FROM {open_waits} AND w.conversation {among} GROUP BY w.conversation;

-- name: place_of_wait
-- The position of a wait in the order of open ones.
SELECT conversation, number FROM waits WHERE key_id = ?;

-- name: wait
-- One wait.
SELECT key_id, uid, conversation, kind, name, secret_id, resolution, revoked FROM waits WHERE key_id = ?;

-- name: secret
-- A secret by its id.
SELECT id, secret FROM secrets WHERE id = ?;

-- name: newest_secret
-- The secret for new keys.
SELECT id, secret FROM secrets ORDER BY number DESC LIMIT 1;

-- name: oldest_secret
-- The first secret there was.
SELECT id, secret FROM secrets ORDER BY number LIMIT 1;

-- name: process_events
-- The events of a process.
SELECT process, sequence, type, payload, at FROM process_events WHERE process = ? AND sequence > ?
ORDER BY sequence LIMIT ?;

-- name: newest_process_events
-- The last events of a process, newest first.
SELECT process, sequence, type, payload, at FROM process_events WHERE process = ? AND sequence > ?
ORDER BY sequence DESC LIMIT ?;

-- name: notifications
-- The notifications queued in a conversation. Number 0 is the count of dropped ones.
SELECT 0, conversation, NULL, NULL, CAST(dropped AS TEXT), dropped_at, NULL, NULL FROM queues
WHERE conversation = ?1 AND dropped > 0
UNION ALL
SELECT number, conversation, kind, level, message, at, uid, carriers FROM notifications WHERE conversation = ?1
ORDER BY 1 LIMIT ?2;

-- name: inquiries
-- The inquiries of a conversation, or of one turn of it.
SELECT id, conversation, turn, uid, at, request, answer, error FROM inquiries
WHERE conversation = ?1 AND (CAST(?2 AS TEXT) IS NULL OR turn = ?2) ORDER BY number LIMIT ?3;

-- name: requests
-- Requests to this process.
SELECT id, uid, body FROM requests WHERE receiver = ? AND reply IS NULL ORDER BY number;

-- name: posts
-- The posts of all processes with ids that begin so.
SELECT id, kind, owner, at, body FROM posts WHERE kind = ?1 AND substr(id, 1, length(?2)) = ?2 ORDER BY number;

-- name: reply_to
-- The reply to a request of this process.
SELECT reply FROM requests WHERE id = ?;

-- name: described
-- One conversation.
SELECT id, created, updated, metadata, lines FROM conversations WHERE id = ?;

-- name: conversations
-- Conversations before a position in the list's order.
SELECT id, created, updated, metadata, lines FROM conversations WHERE (updated, id) < (?, ?);

-- name: transcript
-- Lines of a transcript after a number.
SELECT line, turn, kind, body, at FROM transcripts
WHERE conversation = (SELECT number FROM conversations WHERE id = ?) AND line > ? ORDER BY line LIMIT ?;

-- name: events
-- Events; `listing.py` adds WHERE and ORDER BY.
SELECT seq, at, type, coalesce(conversation, (SELECT h.conversation FROM handles h WHERE h.uid = events.uid), '') AS place,
    uid, data
FROM events

-- name: count
-- How many spawned handles there are: all, those of each state that is not final, and the parked ones.
SELECT 'stopped', CAST(coalesce(sum(handles), 0) AS BIGINT) FROM spawned
UNION ALL
SELECT state_name, count(*) FROM handles WHERE stopped_at IS NULL AND stateful GROUP BY state_name
UNION ALL
SELECT 'parked', count(*) FROM handles
WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL AND stateful;

-- name: asking
-- How many calls have an open question, by owner.
SELECT owner, count(*) FROM handles
WHERE state_name = 'waiting' AND stopped_at IS NULL AND owner IS NOT NULL GROUP BY owner;

-- name: turns
-- The turns of a conversation, newest first.
SELECT number, turn, owner, began_at, ended_at, batches FROM turns
WHERE conversation = ? AND number < coalesce(?, 9223372036854775807) ORDER BY number DESC LIMIT ?;

-- name: summaries
-- Conversations by name: one step in each index for each of them, not for each handle.
WITH RECURSIVE found (name, place) AS (
    SELECT min(first.name), 1 FROM (
        SELECT min(conversation) AS name FROM handles WHERE conversation > ?1
        UNION ALL SELECT min(conversation) FROM turns WHERE conversation > ?1
        UNION ALL SELECT min(id) FROM conversations WHERE id > ?1
    ) AS first
    UNION ALL
    SELECT (
        SELECT min(next.name) FROM (
            SELECT min(conversation) AS name FROM handles WHERE conversation > found.name
            UNION ALL SELECT min(conversation) FROM turns WHERE conversation > found.name
            UNION ALL SELECT min(id) FROM conversations WHERE id > found.name
        ) AS next
    ), found.place + 1 FROM found WHERE found.name IS NOT NULL AND found.place < ?2
)
SELECT found.name,
    coalesce((SELECT handles FROM spawned WHERE conversation = found.name), 0),
    (SELECT count(*) FROM handles {active} WHERE conversation = found.name AND stateful AND stopped_at IS NULL),
    (SELECT max(uid) FROM handles WHERE conversation = found.name),
    (SELECT coalesce(ended_at, began_at) FROM turns WHERE conversation = found.name ORDER BY number DESC LIMIT 1),
    c.updated, c.metadata
FROM found LEFT JOIN conversations c ON c.id = found.name WHERE found.name IS NOT NULL ORDER BY found.name;

-- name: weigh
-- How many handles a query names by `number` and `id`, one-shot calls included, and about how many bytes their rows have.
SELECT count(id), count(*), coalesce(sum(
    (SELECT length(state) + length(arguments) + coalesce(length(metadata), 0) FROM handles h WHERE h.number = found.number)
    + coalesce((SELECT length(kept) FROM outputs o WHERE o.handle = found.number), 0)
    + coalesce((SELECT sum(length(value) + coalesce(length(input), 0)) FROM journal j WHERE j.handle = found.number), 0)
), 0) FROM
