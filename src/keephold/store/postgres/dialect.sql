-- The queries that only PostgreSQL understands, and those that must lock rows here because other processes write at
-- the same time. See `../sql/writes.sql`.

-- name: among
-- A condition: a value is one of a JSON array.
= ANY (ARRAY(SELECT json_array_elements_text(CAST(? AS json))))

-- name: aside
-- Nothing: PostgreSQL chooses indexes by itself.

-- name: locked
-- After a row that is read: until the transaction ends, nobody else changes it.
FOR NO KEY UPDATE

-- name: active
-- Nothing, as in `aside`.


-- name: open_waits
-- Open waits of calls that have not stopped; queries add conditions.
waits w JOIN handles h ON h.uid = w.uid
WHERE w.resolution IS NULL AND NOT w.revoked AND h.stopped_at IS NULL

-- name: ended_by
-- The cause of the end of a handle that has failed. PostgreSQL refuses JSON in which any text has the character NUL, so
-- this is a pattern: within a text, the quotation marks would be escaped.
substring(convert_from(h.state, 'UTF8') FROM '"ended_by": *"([a-z_]+)"')

-- name: resolve
-- Resolve a wait; only the first resolution does. Its call is locked first, as by an operation that stops the call.
WITH held AS MATERIALIZED (
    SELECT 1 FROM handles WHERE uid = (SELECT uid FROM waits WHERE key_id = ?3 AND kind = 'completion')
    FOR NO KEY UPDATE
)
UPDATE waits SET resolution = ?1, resolved_at = ?2
WHERE key_id = ?3 AND resolution IS NULL AND NOT revoked AND (SELECT count(*) FROM held) >= 0
RETURNING uid, kind, conversation;

-- name: revoke
-- Revoke the conversation's open keys. Their calls are locked first.
WITH held AS MATERIALIZED (
    SELECT 1 FROM handles WHERE uid IN (
        SELECT uid FROM waits
        WHERE conversation = ?2 AND resolution IS NULL AND NOT revoked AND kind = 'completion'
    ) ORDER BY uid FOR NO KEY UPDATE
)
UPDATE waits SET revoked = TRUE, resolved_at = ?1
WHERE conversation = ?2 AND resolution IS NULL AND NOT revoked AND (SELECT count(*) FROM held) >= 0
RETURNING key_id, uid, kind;

-- name: browser_owners
-- The owners of dashboards that have browser sessions.
SELECT owner FROM browsers ORDER BY owner;

-- name: browser_sessions
-- The browser sessions of an owner.
SELECT sessions FROM browsers WHERE owner = ?;

-- name: add_browser_sessions
-- Begin the browser sessions of an owner, unless another process was first.
INSERT INTO browsers (owner, sessions, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING owner;

-- name: replace_browser_sessions
-- Change the browser sessions of an owner, unless another process was first.
UPDATE browsers SET sessions = ?, at = ? WHERE owner = ? AND sessions = ? RETURNING owner;

-- name: delete_browser_sessions
-- Delete browser sessions that were not changed for long.
DELETE FROM browsers WHERE at < ?;

-- name: lock
-- Take locks until the transaction ends.
SELECT pg_advisory_xact_lock(each) FROM unnest(CAST(? AS bigint[])) AS each;

-- name: record_steps
-- Add journal lines.
SELECT record_steps(?, ?, ?, ?, ?, ?, ?, ?);

-- name: finish
-- End a transaction.
SELECT finish(?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: commit_step
-- Commit a transaction of one journal line. The call stays locked until then, so that no other process can claim it. If
-- the fencing number is not right, there is no call, and the table refuses the line. The event is numbered as in `finish`.
WITH line AS (
    INSERT INTO journal (handle, kind, name, digest, value, ok, input)
    VALUES (
        (SELECT number FROM handles WHERE uid = ?1 AND fence = ?2 AND stopped_at IS NULL FOR NO KEY UPDATE),
        ?3, ?4, ?5, ?6, ?7, ?8
    )
    RETURNING handle
), numbering AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(?9) FROM line
), event AS (
    INSERT INTO events (at, type, conversation, uid, data) SELECT ?10, ?11, ?12, ?13, ?14 FROM numbering
)
SELECT CASE WHEN CAST(?16 AS text) IS NOT NULL THEN pg_notify(?15, ?16) END FROM numbering;

-- name: commit_steps
-- The same of several lines, whose columns are arrays.
WITH calls AS MATERIALIZED (
    SELECT number, uid, fence FROM handles
    WHERE uid = ANY (CAST(?1 AS text[])) AND stopped_at IS NULL ORDER BY uid FOR NO KEY UPDATE
), lines AS (
    INSERT INTO journal (handle, kind, name, digest, value, ok, input)
    SELECT c.number, l.kind, l.name, l.digest, l.val, l.ok, l.input
    FROM unnest(
        CAST(?1 AS text[]), CAST(?2 AS bigint[]), CAST(?3 AS text[]), CAST(?4 AS text[]), CAST(?5 AS bytea[]),
        CAST(?6 AS bytea[]), CAST(?7 AS boolean[]), CAST(?8 AS bytea[])
    ) WITH ORDINALITY AS l (uid, fence, kind, name, digest, val, ok, input, place)
    LEFT JOIN calls c ON c.uid = l.uid AND c.fence = l.fence
    ORDER BY l.place
    RETURNING handle
), numbering AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(?9) FROM (SELECT count(*) FROM lines) AS written
), event AS (
    INSERT INTO events (at, type, conversation, uid, data)
    SELECT ?10, e.type, e.place, e.uid, e.body
    FROM numbering, unnest(
        CAST(?11 AS text[]), CAST(?12 AS text[]), CAST(?13 AS text[]), CAST(?14 AS bytea[])
    ) WITH ORDINALITY AS e (type, place, uid, body, nth)
    ORDER BY e.nth
)
SELECT CASE WHEN CAST(?16 AS text) IS NOT NULL THEN pg_notify(?15, ?16) END FROM numbering;

-- name: hold_owner
-- The count of this process's transactions, when none of them is under way any more.
SELECT commits FROM owners WHERE owner = ? FOR UPDATE;

-- name: hold_call
-- Wait until no transaction that has locked the call is under way.
SELECT 1 FROM handles WHERE uid = ? FOR UPDATE;

-- name: end_session
-- End a session whose connection was lost: the server may not have noticed.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ? AND backend_start = ?;

-- name: this_session
-- This session, for `end_session`.
SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid();

-- name: next_owner
-- Number a process that opens the store.
UPDATE registrations SET last = last + 1 RETURNING last;

-- name: add_owner
-- Add a process that has opened the store.
INSERT INTO owners (owner, commits, lock, place) VALUES (?, 0, ?, ?);

-- name: last_owner
-- The number of the last process that has opened the store.
SELECT last FROM registrations;

-- name: present
-- Every process that has the store open, where it runs, and whether its lock is held.
SELECT o.owner, o.place, EXISTS (
    SELECT 1 FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.classid = CAST((o.lock >> 32) & 4294967295 AS oid) AND l.objid = CAST(o.lock & 4294967295 AS oid)
) FROM owners o;

-- name: take_lock
-- Take the lock of a process for this session, if it is free.
SELECT pg_try_advisory_lock(?);

-- name: remove_dead
-- Remove a process, unless it holds its lock, or one of its transactions is under way.
DELETE FROM owners WHERE owner = (
    SELECT owner FROM owners WHERE owner = ? AND pg_try_advisory_xact_lock(lock) FOR UPDATE SKIP LOCKED
) RETURNING owner;

-- name: registered
-- Whether a process has the store open as far as others know.
SELECT 1 FROM owners WHERE owner = ?;

-- name: tell
-- Tell other processes what has changed.
SELECT pg_notify(?, ?);

-- name: disk_bytes
-- How many bytes the tables and indexes of this schema take on the disk.
SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS bigint) FROM pg_class c
WHERE c.relnamespace = to_regnamespace(current_schema()) AND c.relkind = 'r';

-- name: events
-- Events; `sql/listing.py` adds WHERE and ORDER BY.
SELECT seq, at, type, place, uid, data FROM (
    SELECT e.*, coalesce(e.conversation, (SELECT h.conversation FROM handles h WHERE h.uid = e.uid), '') AS place
    FROM events e
) AS found

-- name: ended
-- How many spawned handles have stopped since then. Large values are not parsed: errors have none.
SELECT tool, status, CASE status WHEN 'completed' THEN 'self' ELSE {ended_by} END AS ended_by, count(*)
FROM handles h WHERE stateful AND stopped_at IS NOT NULL AND stopped_at >= ? GROUP BY 1, 2, 3;

-- name: newest_inquiries
-- The same, newest first.
SELECT id, conversation, turn, uid, at, request, answer, error FROM inquiries
WHERE conversation = ?1 AND (CAST(?2 AS TEXT) IS NULL OR turn = ?2) ORDER BY number DESC LIMIT ?3;

-- name: pages
-- The pages and the columns of these tables.
SELECT c.relname, pg_relation_size(c.oid) / current_setting('block_size')::bigint, array_agg(CAST(a.attname AS text))
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = to_regnamespace(current_schema()) AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
  AND c.relname = ANY (CAST(? AS text[]))
GROUP BY c.oid, c.relname;

-- name: columns
-- The columns of these tables, as far as they exist.
SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = to_regnamespace(current_schema()) AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
  AND c.relname = ANY (CAST(? AS text[]))
ORDER BY c.relname, a.attnum;

-- name: renumber
-- Continue each numbering after the rows that were restored.
DO $$ DECLARE each record; BEGIN
    FOR each IN SELECT c.relname AS name, a.attname AS number FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = to_regnamespace(current_schema()) AND c.relkind = 'r' AND a.attidentity <> ''
    LOOP
        EXECUTE format('SELECT setval(pg_get_serial_sequence(%L, %L), (SELECT coalesce(max(%I), 0) + 1 FROM %I), false)',
            each.name, each.number, each.number, each.name);
    END LOOP;
END $$;

-- name: open_keys
-- The secrets, and how many keys that each signed can still be used.
SELECT id, at, (SELECT count(*) FROM waits w WHERE w.secret_id = s.id AND resolution IS NULL AND NOT revoked)
FROM secrets s ORDER BY number;
