-- Every transaction ends with the check that no other process has removed this one, also a transaction that a journal
-- line proves: turns and process events have no fencing number. The row stays locked until the transaction ends, so
-- that nobody removes it in between.

CREATE OR REPLACE FUNCTION finish(
    me text, counted bigint, numbering bigint, written_at double precision, types text[], places text[], uids text[],
    bodies bytea[], channel text, message text
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF counted IS NULL THEN
        PERFORM 1 FROM owners WHERE owner = me FOR KEY SHARE;
    ELSE
        UPDATE owners SET commits = commits + 1 WHERE owner = me AND commits = counted;
    END IF;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    IF cardinality(types) > 0 THEN
        PERFORM pg_advisory_xact_lock(numbering);
        INSERT INTO events (at, type, conversation, uid, data)
        SELECT written_at, e.type, e.place, e.uid, e.body
        FROM unnest(types, places, uids, bodies) WITH ORDINALITY AS e (type, place, uid, body, nth) ORDER BY e.nth;
    END IF;
    IF message IS NOT NULL THEN
        PERFORM pg_notify(channel, message);
    END IF;
    RETURN TRUE;
END $$;
