CREATE TABLE IF NOT EXISTS {table} (
  k           bytea    NOT NULL PRIMARY KEY,
  state       smallint NOT NULL,
  written_at  bigint   NOT NULL,
  topic       text     NOT NULL,
  head        bytea,
  body        bytea
);
CREATE INDEX IF NOT EXISTS {index:age} ON {table} (state, written_at);
