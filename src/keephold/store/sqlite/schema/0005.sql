-- Events, in one order; and indexes for lists that people page through.

-- Written in the transaction that they describe. The newest one stays at any age, so that no number is
-- used again; AUTOINCREMENT would write a second row for each.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    type TEXT NOT NULL,
    conversation TEXT,                  -- NULL: that of the handle
    uid TEXT,
    data BLOB NOT NULL
);
-- Without steps, which are many, and in the journal of their call.
CREATE INDEX events_of ON events (uid, seq) WHERE uid IS NOT NULL AND type <> 'handle.stepped';
-- In the order of arrival, so that it is written at its end only; that of one conversation is picked out of it.
CREATE INDEX events_news ON events (seq, conversation)
    WHERE type IN ('news.queued', 'news.delivered', 'news.removed');

-- The input of a step. Its digest decides about replays; this is for people to read.
ALTER TABLE journal ADD COLUMN input BLOB;

CREATE INDEX turns_in ON turns (conversation, number);
-- Waits that can be resolved; most have been.
DROP INDEX waits_in;
CREATE INDEX waits_open ON waits (conversation, number) WHERE resolution IS NULL AND NOT revoked;

-- Pages of long lists are merged from these: live handles by state, and stopped spawned ones. A one-shot call
-- that has stopped is in neither, so its end costs less than it did.
DROP INDEX handles_state;
CREATE INDEX handles_live ON handles (state_name, uid, stateful) WHERE stopped_at IS NULL;
CREATE INDEX handles_over ON handles (uid) WHERE stateful AND stopped_at IS NOT NULL;
-- Handles by when they stopped.
CREATE INDEX handles_ended ON handles (stopped_at, uid) WHERE stateful AND stopped_at IS NOT NULL;
-- With `stateful` in it, so that spawned ones can be counted.
DROP INDEX handles_parked;
CREATE INDEX handles_parked ON handles (uid, stateful)
    WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL;
-- Spawned ones are in `handles_status`: each index by conversations is a page more in the commit of each end.
DROP INDEX handles_parked_in;
CREATE INDEX handles_parked_in ON handles (conversation, uid)
    WHERE NOT stateful AND owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL;

-- How many spawned handles a conversation has. Live ones are counted when somebody asks; counting stopped ones
-- would take 3 ms for 100,000.
CREATE TABLE spawned (
    conversation TEXT PRIMARY KEY,
    handles INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO spawned (conversation, handles)
SELECT conversation, count(*) FROM handles WHERE stateful GROUP BY conversation;

CREATE TRIGGER handles_come AFTER INSERT ON handles WHEN new.stateful BEGIN
    INSERT INTO spawned (conversation, handles) VALUES (new.conversation, 1)
    ON CONFLICT (conversation) DO UPDATE SET handles = handles + 1;
END;
CREATE TRIGGER handles_exposed AFTER UPDATE OF stateful ON handles WHEN new.stateful AND NOT old.stateful BEGIN
    INSERT INTO spawned (conversation, handles) VALUES (new.conversation, 1)
    ON CONFLICT (conversation) DO UPDATE SET handles = handles + 1;
END;
CREATE TRIGGER handles_go AFTER DELETE ON handles WHEN old.stateful BEGIN
    UPDATE spawned SET handles = handles - 1 WHERE conversation = old.conversation;
    DELETE FROM spawned WHERE conversation = old.conversation AND handles = 0;
END;
