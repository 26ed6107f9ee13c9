-- Rename columns, events and indexes to the word notification.

ALTER TABLE batches RENAME COLUMN news TO notifications;
DROP INDEX events_news;
UPDATE events SET type = 'notification.' || substr(type, 6)
    WHERE type IN ('news.queued', 'news.delivered', 'news.removed');
CREATE INDEX events_notifications ON events (seq, conversation)
    WHERE type IN ('notification.queued', 'notification.delivered', 'notification.removed');
