-- Statuses are a view of the state (W1), kept beside it so that they can be asked for; progress is kept (W8).

ALTER TABLE handles ADD COLUMN status TEXT NOT NULL DEFAULT 'pending';
ALTER TABLE handles ADD COLUMN progress BLOB;

-- SQLite refuses JSON that is nested too deeply for it, and no error is.
UPDATE handles SET status = CASE
    WHEN NOT json_valid(CAST(state AS TEXT)) OR CAST(state AS TEXT) ->> '$.outcome.type' <> 'error' THEN 'completed'
    WHEN CAST(state AS TEXT) ->> '$.ended_by' = 'timeout'
      OR CAST(state AS TEXT) ->> '$.outcome.code' IN ('timeout', 'tool_completion_timeout') THEN 'timeout'
    ELSE 'failed'
END
WHERE stopped_at IS NOT NULL;

-- The uid comes last, so that the handles of one status and kind are in order: pages of several are merged from it. The
-- end of a spawned handle pays 6 µs for it where many end at once, measured; a one-shot call pays nothing.
CREATE INDEX handles_status ON handles (conversation, status, kind, uid) WHERE stateful;
CREATE INDEX handles_timers ON handles (conversation, uid) WHERE kind = 'timer' AND NOT stateful AND stopped_at IS NULL;
