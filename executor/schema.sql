-- Version 1 of the database. Later versions are further scripts in database.py; this one never changes.

CREATE TABLE executions (
    pos             INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation: listings and cursors
    execution_id    TEXT    NOT NULL UNIQUE,
    owner           TEXT    NOT NULL,
    profile         TEXT    NOT NULL,
    format          INTEGER NOT NULL,
    created_at      REAL    NOT NULL,
    ended_at        REAL,
    session_id      TEXT,
    previous        TEXT,                               -- the execution before it in its session
    depth           INTEGER NOT NULL,                   -- agents above this one
    status          TEXT    NOT NULL,
    driver          TEXT,                               -- NULL: nobody drives it
    epoch           INTEGER NOT NULL,
    tries           INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL,
    idempotency_key TEXT,
    request_hash    TEXT    NOT NULL,
    snapshot        BLOB    NOT NULL                    -- the Execution as JSON, but for its request
);

-- The request is long and never changes: apart, so that an append need not write it again.
CREATE TABLE requests (
    pos     INTEGER PRIMARY KEY REFERENCES executions (pos) ON DELETE CASCADE,
    request BLOB NOT NULL
);

CREATE TABLE events (
    pos          INTEGER PRIMARY KEY AUTOINCREMENT,     -- never used twice: other processes read on from here
    execution_id TEXT    NOT NULL REFERENCES executions (execution_id) ON DELETE CASCADE,
    seq          INTEGER NOT NULL,
    step_type    TEXT    NOT NULL,
    is_final     INTEGER NOT NULL,
    data         BLOB    NOT NULL,                      -- the public event, one line of JSON
    private      BLOB,                                  -- what only a replay needs
    UNIQUE (execution_id, seq)
);

CREATE TABLE drivers (
    driver TEXT PRIMARY KEY,
    host   TEXT    NOT NULL,                            -- host and pid are for people
    pid    INTEGER NOT NULL,
    lock   TEXT    NOT NULL,                            -- the name of its lock file
    beat   INTEGER NOT NULL                             -- grows while it lives
);

CREATE INDEX executions_of_owner ON executions (owner, pos);
CREATE INDEX executions_of_status ON executions (owner, status, pos);
CREATE INDEX executions_of_session ON executions (owner, session_id, pos) WHERE session_id IS NOT NULL;
CREATE UNIQUE INDEX executions_by_key ON executions (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_claimable ON executions (profile, driver) WHERE status = 'working';
CREATE INDEX executions_waiting ON executions (profile) WHERE status = 'input_required';
CREATE INDEX executions_ended ON executions (ended_at, pos) WHERE ended_at IS NOT NULL;
CREATE INDEX executions_previous ON executions (previous) WHERE previous IS NOT NULL;
