-- The first schema. JSON is kept as text in BLOB columns, as msgspec writes it; times are seconds since the epoch.

-- Keys are signed with these (D3); the one of the highest number is for new keys.
CREATE TABLE secrets (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    secret BLOB NOT NULL,
    at REAL NOT NULL
);

-- How many transactions each process has counted: after a COMMIT that failed, this tells whether it happened.
CREATE TABLE owners (
    owner TEXT PRIMARY KEY,
    commits INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE turns (
    number INTEGER PRIMARY KEY,
    conversation TEXT NOT NULL,
    turn TEXT NOT NULL,
    owner TEXT NOT NULL,
    began_at REAL NOT NULL,
    ended_at REAL,
    batches INTEGER NOT NULL DEFAULT 0,
    open_batch INTEGER,
    UNIQUE (conversation, turn)
);
CREATE UNIQUE INDEX turns_open ON turns (conversation) WHERE ended_at IS NULL;
CREATE INDEX turns_over ON turns (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE batches (
    conversation TEXT NOT NULL,
    turn TEXT NOT NULL,
    batch INTEGER NOT NULL,
    calls BLOB NOT NULL,
    responses BLOB,
    PRIMARY KEY (conversation, turn, batch)
);

-- Rows have a number of their own, so that the indexes and the journal carry 8 bytes and not the uid's 32.
CREATE TABLE handles (
    number INTEGER PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE,
    id TEXT NOT NULL,
    tool TEXT NOT NULL,
    conversation TEXT NOT NULL,
    turn TEXT NOT NULL,
    batch INTEGER NOT NULL,
    position INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    priority INTEGER NOT NULL,
    stateful INTEGER NOT NULL,
    state_name TEXT NOT NULL,
    stopped_at REAL,
    owner TEXT,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    next_attempt_at REAL,
    cursor INTEGER NOT NULL,
    keyed INTEGER NOT NULL DEFAULT 0,   -- it has taken its completion key
    resolved INTEGER NOT NULL DEFAULT 0, -- its completion came from outside
    deadline REAL,                      -- of `parking`
    hook_due INTEGER NOT NULL DEFAULT 0,
    parking BLOB,
    resources BLOB,
    metadata BLOB,
    state BLOB NOT NULL,
    arguments BLOB NOT NULL
);
CREATE UNIQUE INDEX handles_active ON handles (conversation, id) WHERE stateful AND stopped_at IS NULL;
CREATE INDEX handles_named ON handles (conversation, id) WHERE stateful;
CREATE INDEX handles_called ON handles (conversation, call_id) WHERE NOT stateful;
CREATE INDEX handles_conversation ON handles (conversation, uid);
CREATE INDEX handles_state ON handles (state_name, uid);
CREATE INDEX handles_owned ON handles (owner, uid) WHERE owner IS NOT NULL;
-- A call is parked when it has no owner, has terms to wait on, and has not stopped.
CREATE INDEX handles_parked ON handles (uid) WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL;
CREATE INDEX handles_parked_in ON handles (conversation, uid)
    WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL;
CREATE INDEX handles_deadline ON handles (deadline)
    WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL AND NOT resolved AND deadline IS NOT NULL;
CREATE INDEX handles_holding ON handles (uid)
    WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL AND resources IS NOT NULL;
CREATE INDEX handles_held ON handles (uid)
    WHERE owner IS NULL AND parking IS NOT NULL AND stopped_at IS NULL AND resolved;
CREATE INDEX handles_hooks ON handles (uid) WHERE owner IS NULL AND hook_due;
CREATE INDEX handles_stopped ON handles (stopped_at) WHERE stopped_at IS NOT NULL AND NOT hook_due;

-- Beside the handles, so that a changed cursor does not rewrite 64 KiB of output.
CREATE TABLE outputs (
    handle INTEGER PRIMARY KEY,         -- handles.number
    kept BLOB NOT NULL,                 -- MessagePack: it holds bytes
    file TEXT
);

-- A table that only grows at its end, and a small index: measured faster than one table WITHOUT ROWID.
CREATE TABLE journal (
    number INTEGER PRIMARY KEY,
    handle INTEGER NOT NULL,            -- handles.number
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    value BLOB NOT NULL,
    ok INTEGER NOT NULL
);
CREATE UNIQUE INDEX journal_once ON journal (handle, kind, name);

CREATE TABLE waits (
    number INTEGER PRIMARY KEY,
    key_id TEXT NOT NULL UNIQUE,
    uid TEXT NOT NULL,
    conversation TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    secret_id TEXT NOT NULL,
    resolution BLOB,
    resolved_at REAL,                   -- or revoked
    revoked INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX waits_of ON waits (uid);
-- All of them, not only open ones: otherwise a resolution would have to change the index, too.
CREATE INDEX waits_in ON waits (conversation);

CREATE TABLE process_events (
    process TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    type TEXT NOT NULL,
    payload BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (process, sequence)
) WITHOUT ROWID;

-- Queued notifications; delivered ones are deleted, and their numbers are not used again.
CREATE TABLE notifications (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL,
    kind TEXT NOT NULL,
    level TEXT NOT NULL,
    message TEXT NOT NULL,
    at REAL NOT NULL,
    uid TEXT
);
CREATE INDEX notifications_for ON notifications (conversation, number);
CREATE INDEX notifications_of ON notifications (uid) WHERE uid IS NOT NULL;

CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    uid TEXT NOT NULL,
    sender TEXT NOT NULL,
    receiver TEXT NOT NULL,
    body BLOB NOT NULL,
    reply BLOB
);
CREATE INDEX requests_open ON requests (receiver) WHERE reply IS NULL;

-- Tombstones: the rest of a handle after its retention (S5).
CREATE TABLE tombstones (
    number INTEGER PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE,
    id TEXT,                            -- NULL: a call that could not be named, kept for the sake of its keys
    conversation TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX tombstones_named ON tombstones (conversation, id, number) WHERE id IS NOT NULL;
CREATE INDEX tombstones_newest ON tombstones (conversation, number);
CREATE INDEX tombstones_age ON tombstones (at);

-- Output files whose handles are deleted: removed after the commit that says so, and again if that was cut short.
CREATE TABLE litter (
    file TEXT PRIMARY KEY
) WITHOUT ROWID;
