-- Prompts and standing permissions of running processes, for other processes to see (P6). They end with their process.
CREATE TABLE posts (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    at REAL NOT NULL,
    body BLOB NOT NULL
);

-- The permission with which a call ran, as JSON. NULL: the configuration, as for most calls. The default is that of earlier rows,
-- {"by":"unknown"}; SQLite does not rewrite them for it.
ALTER TABLE handles ADD COLUMN allowed BLOB DEFAULT X'7b226279223a22756e6b6e6f776e227d';
