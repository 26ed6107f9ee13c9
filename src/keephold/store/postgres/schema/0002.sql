-- The browser sessions of the dashboard, a document for each owner's token, which `owner` is a hash of. All servers of
-- the store read and replace it.

CREATE TABLE browsers (
    owner text COLLATE "C" PRIMARY KEY,
    sessions bytea NOT NULL,
    at double precision NOT NULL
);
