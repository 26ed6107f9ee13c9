-- Deaths of processes are counted, so that a call that ends every process which runs it is found (R8); a call can be
-- repeated.

ALTER TABLE handles ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
ALTER TABLE handles ADD COLUMN standing TEXT;         -- 'queued', 'alone', 'released', or NULL
ALTER TABLE handles ADD COLUMN retry_of TEXT;
