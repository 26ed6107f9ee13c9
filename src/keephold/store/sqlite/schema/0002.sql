-- News rides on carriers (N4), waits in a queue that is bounded (N6), and is kept with the responses it rode on.
-- Inquiries are recorded (Q6).

ALTER TABLE batches ADD COLUMN news BLOB;
-- News that was handed out last, with nothing since to show that it arrived, and what carried it (N3).
ALTER TABLE turns ADD COLUMN carried BLOB;
ALTER TABLE turns ADD COLUMN carried_by TEXT;

ALTER TABLE notifications ADD COLUMN carriers INTEGER NOT NULL DEFAULT 7;  -- 1: response, 2: message, 4: turn
-- With the level in it: whatever goes first when too much waits is found in one step.
DROP INDEX notifications_for;
CREATE INDEX notifications_in ON notifications (conversation, level, number);

-- How much news waits in a conversation, and how much went because too much did. Counted by the triggers, so that it
-- cannot be wrong: measured at 4 µs for each, where counting 1,000 rows is 20.
CREATE TABLE queues (
    conversation TEXT PRIMARY KEY,
    waiting INTEGER NOT NULL,
    dropped INTEGER NOT NULL DEFAULT 0,
    dropped_at REAL
) WITHOUT ROWID;
INSERT INTO queues (conversation, waiting) SELECT conversation, count(*) FROM notifications GROUP BY conversation;

CREATE TRIGGER notifications_come AFTER INSERT ON notifications BEGIN
    INSERT INTO queues (conversation, waiting) VALUES (new.conversation, 1)
    ON CONFLICT (conversation) DO UPDATE SET waiting = waiting + 1;
END;
CREATE TRIGGER notifications_go AFTER DELETE ON notifications BEGIN
    UPDATE queues SET waiting = waiting - 1 WHERE conversation = old.conversation;
END;
CREATE TRIGGER queues_empty AFTER UPDATE ON queues WHEN new.waiting = 0 AND new.dropped = 0 BEGIN
    DELETE FROM queues WHERE conversation = new.conversation;
END;

CREATE TABLE inquiries (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    conversation TEXT NOT NULL,
    turn TEXT NOT NULL,
    uid TEXT,
    at REAL NOT NULL,
    request BLOB NOT NULL,
    answer BLOB NOT NULL,
    error TEXT
);
CREATE INDEX inquiries_in ON inquiries (conversation, turn);
CREATE INDEX inquiries_age ON inquiries (at);
