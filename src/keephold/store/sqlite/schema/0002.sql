-- Notifications ride on carriers (N4), wait in a bounded queue (N6), and are kept with the responses they rode on.
-- Inquiries are recorded (Q6).

ALTER TABLE batches ADD COLUMN news BLOB;
-- Notifications handed out last, with nothing since to show that they arrived, and their carrier (N3).
ALTER TABLE turns ADD COLUMN carried BLOB;
ALTER TABLE turns ADD COLUMN carried_by TEXT;

ALTER TABLE notifications ADD COLUMN carriers INTEGER NOT NULL DEFAULT 7;  -- 1: response, 2: message, 4: turn
-- With the level in it: the first one to drop from a full queue is found in one step.
DROP INDEX notifications_for;
CREATE INDEX notifications_in ON notifications (conversation, level, number);

-- How many notifications a conversation has queued, and how many were dropped. Counted by triggers, so that the count
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
