-- Transcripts and descriptions of conversations. Only the user deletes them: retention leaves them alone.

CREATE TABLE conversations (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    lines INTEGER NOT NULL,             -- as many as `transcripts` has of it: the number of the last one
    metadata BLOB NOT NULL
);
CREATE INDEX conversations_newest ON conversations (updated, id);

-- Like the journal: a table that only grows at its end, and a small index. Lines are long.
CREATE TABLE transcripts (
    number INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL,      -- conversations.number
    line INTEGER NOT NULL,
    turn TEXT NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX transcripts_in ON transcripts (conversation, line);

CREATE TRIGGER conversations_go AFTER DELETE ON conversations BEGIN
    DELETE FROM transcripts WHERE conversation = old.number;
END;
