CREATE TABLE IF NOT EXISTS {table} (
  k            BLOB    NOT NULL PRIMARY KEY,
  epoch        INTEGER NOT NULL,
  revision     INTEGER NOT NULL,
  claimed_at   INTEGER NOT NULL,
  lease_until  INTEGER,
  expires_at   INTEGER NOT NULL,
  sweep_after  INTEGER NOT NULL,
  attempts     INTEGER NOT NULL,
  crashes      INTEGER NOT NULL,
  redrive      INTEGER NOT NULL,
  state        INTEGER NOT NULL,
  alone        INTEGER NOT NULL,
  owner        BLOB    NOT NULL,
  fingerprint  BLOB,
  holder       TEXT    NOT NULL,
  last_error   TEXT    NOT NULL,
  result       BLOB
);
CREATE INDEX IF NOT EXISTS {index:sweep} ON {bare} (sweep_after);
