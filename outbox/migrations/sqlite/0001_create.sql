CREATE TABLE IF NOT EXISTS {table} (
  seq         INTEGER PRIMARY KEY AUTOINCREMENT,
  created_at  INTEGER NOT NULL,
  sent_at     INTEGER,
  lane        INTEGER NOT NULL,
  attempts    INTEGER NOT NULL,
  shard       INTEGER NOT NULL,
  state       INTEGER NOT NULL,
  other       INTEGER NOT NULL DEFAULT 0 CHECK (other = 0),
  content     BLOB    NOT NULL,
  id          TEXT    NOT NULL UNIQUE,
  topic       TEXT    NOT NULL,
  msg_key     TEXT,
  last_error  TEXT    NOT NULL,
  headers     BLOB,
  body        BLOB
);
CREATE INDEX IF NOT EXISTS {index:pending} ON {bare} (seq) WHERE state = 0;
CREATE INDEX IF NOT EXISTS {index:parked} ON {bare} (lane) WHERE state = 2;
CREATE INDEX IF NOT EXISTS {index:sent} ON {bare} (sent_at) WHERE state = 1;
CREATE TABLE IF NOT EXISTS {beside:shards} (
  shard       INTEGER NOT NULL PRIMARY KEY,
  token       BLOB    NOT NULL,
  lease_until INTEGER NOT NULL
);
WITH RECURSIVE n (shard) AS (SELECT 0 UNION ALL SELECT shard + 1 FROM n WHERE shard < 64)
  INSERT INTO {beside:shards} (shard, token, lease_until) SELECT shard, x'', 0 FROM n WHERE true ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS {beside:relays} (
  token       BLOB    NOT NULL PRIMARY KEY,
  name        TEXT    NOT NULL,
  alive_until INTEGER NOT NULL
);
