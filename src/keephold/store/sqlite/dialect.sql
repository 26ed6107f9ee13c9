-- The queries that only SQLite understands. See `../sql/writes.sql`.

-- name: among
-- A condition: a value is one of a JSON array.
IN (SELECT value FROM json_each(?) AS found)

-- name: aside
-- Before a column, this keeps SQLite from choosing an index by that column.
+

-- name: ended_by
-- The cause of the end of a handle that has failed. Only for those: SQLite refuses JSON that is nested too deeply for it.
CAST(h.state AS TEXT) ->> '$.ended_by'

-- name: record_step
-- Add a journal line, if the fencing number is right and its name is new.
INSERT INTO journal (handle, kind, name, digest, value, ok, input)
SELECT number, ?, ?, ?, ?, ?, ? FROM handles WHERE uid = ? AND fence = ? AND stopped_at IS NULL
ON CONFLICT DO NOTHING;

-- name: add_event
-- Add an event. Without a conversation, it is that of its handle.
INSERT INTO events (at, type, conversation, uid, data) VALUES (?, ?, ?, ?, ?);

-- name: ended
-- How many spawned handles have stopped since then. Large values are not parsed: errors have none.
SELECT tool, status, CASE status WHEN 'completed' THEN 'self' ELSE CAST(state AS TEXT) ->> '$.ended_by' END AS ended_by,
    count(*)
FROM handles INDEXED BY handles_ended
WHERE stateful AND stopped_at IS NOT NULL AND stopped_at >= ? GROUP BY tool, status, ended_by;

-- name: open_waits_beyond
-- Open waits of calls that have not stopped, of conversations after that one.
SELECT w.key_id, w.uid, w.conversation, w.kind, w.name, w.secret_id, w.resolution, w.revoked
FROM waits w INDEXED BY waits_open CROSS JOIN handles h ON h.uid = w.uid
WHERE w.resolution IS NULL AND NOT w.revoked AND h.stopped_at IS NULL AND w.conversation > ?
ORDER BY w.conversation, w.number LIMIT ?;

-- name: open_waits_in
-- The same of one conversation, after the one of a number.
SELECT w.key_id, w.uid, w.conversation, w.kind, w.name, w.secret_id, w.resolution, w.revoked
FROM waits w INDEXED BY waits_open CROSS JOIN handles h ON h.uid = w.uid
WHERE w.resolution IS NULL AND NOT w.revoked AND h.stopped_at IS NULL AND w.conversation = ?
  AND w.number > ?
ORDER BY w.number LIMIT ?;

-- name: count_open_waits
-- How many open waits conversations have.
SELECT w.conversation, count(*) FROM json_each(?) AS found
CROSS JOIN waits w INDEXED BY waits_open ON w.conversation = found.value
CROSS JOIN handles h ON h.uid = w.uid
WHERE w.resolution IS NULL AND NOT w.revoked AND h.stopped_at IS NULL GROUP BY w.conversation;

-- name: newest_inquiries
-- The same, newest first. They are chosen in the index.
SELECT id, conversation, turn, uid, at, request, answer, error FROM inquiries WHERE number IN (
    SELECT number FROM inquiries INDEXED BY inquiries_in WHERE conversation = ?1 AND (?2 IS NULL OR turn = ?2)
    ORDER BY number DESC LIMIT ?3
) ORDER BY number DESC;

-- name: summaries
-- Conversations by name: one step in each index for each of them, not for each handle.
WITH RECURSIVE found (name) AS (
    SELECT min(name) FROM (
        SELECT min(conversation) AS name FROM handles WHERE conversation > ?1
        UNION ALL SELECT min(conversation) FROM turns WHERE conversation > ?1
        UNION ALL SELECT min(id) FROM conversations WHERE id > ?1
    )
    UNION ALL
    SELECT (
        SELECT min(name) FROM (
            SELECT min(conversation) AS name FROM handles WHERE conversation > found.name
            UNION ALL SELECT min(conversation) FROM turns WHERE conversation > found.name
            UNION ALL SELECT min(id) FROM conversations WHERE id > found.name
        )
    ) FROM found WHERE found.name IS NOT NULL LIMIT ?2
)
SELECT name,
    coalesce((SELECT handles FROM spawned WHERE conversation = name), 0),
    (SELECT count(*) FROM handles INDEXED BY handles_active WHERE conversation = name AND stateful AND stopped_at IS NULL),
    (SELECT max(uid) FROM handles WHERE conversation = name),
    (SELECT coalesce(ended_at, began_at) FROM turns WHERE conversation = name ORDER BY number DESC LIMIT 1),
    c.updated, c.metadata
FROM found LEFT JOIN conversations c ON c.id = name WHERE name IS NOT NULL;
