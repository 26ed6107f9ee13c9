-- The queries that only SQLite understands. See `../sql/writes.sql`.

-- name: among
-- A condition: a value is one of a JSON array.
IN (SELECT value FROM json_each(?) AS found)

-- name: aside
-- Before a column, this keeps SQLite from choosing an index by that column.
+

-- name: locked
-- Nothing: one transaction writes at a time.


-- name: active
-- The index of live handles, which SQLite would not choose.
INDEXED BY handles_active

-- name: open_waits
-- Open waits of calls that have not stopped, by their index; queries add conditions.
waits w INDEXED BY waits_open CROSS JOIN handles h ON h.uid = w.uid
WHERE w.resolution IS NULL AND NOT w.revoked AND h.stopped_at IS NULL

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

-- name: newest_inquiries
-- The same, newest first. They are chosen in the index.
SELECT id, conversation, turn, uid, at, request, answer, error FROM inquiries WHERE number IN (
    SELECT number FROM inquiries INDEXED BY inquiries_in WHERE conversation = ?1 AND (?2 IS NULL OR turn = ?2)
    ORDER BY number DESC LIMIT ?3
) ORDER BY number DESC;
