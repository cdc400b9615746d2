CREATE TABLE IF NOT EXISTS {table} (
  k           BLOB    NOT NULL PRIMARY KEY,
  state       INTEGER NOT NULL,
  written_at  INTEGER NOT NULL,
  topic       TEXT    NOT NULL,
  head        BLOB,
  body        BLOB
);
CREATE INDEX IF NOT EXISTS {index:age} ON {bare} (state, written_at);
