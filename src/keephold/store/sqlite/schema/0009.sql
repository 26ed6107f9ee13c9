-- The attempt of a call that became ready (A9); 0: none has.

ALTER TABLE handles ADD COLUMN ready INTEGER NOT NULL DEFAULT 0;
