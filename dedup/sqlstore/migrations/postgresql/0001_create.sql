-- Pages keep room, so that the end of a claim is written beside it and no index is touched.
CREATE TABLE IF NOT EXISTS {table} (
  k            bytea    NOT NULL PRIMARY KEY,
  epoch        bigint   NOT NULL,
  revision     bigint   NOT NULL,
  claimed_at   bigint   NOT NULL,
  lease_until  bigint,
  expires_at   bigint   NOT NULL,
  sweep_after  bigint   NOT NULL,
  attempts     integer  NOT NULL,
  crashes      integer  NOT NULL,
  redrive      integer  NOT NULL,
  state        smallint NOT NULL,
  alone        smallint NOT NULL,
  owner        bytea    NOT NULL,
  fingerprint  bytea,
  holder       text     NOT NULL,
  last_error   text     NOT NULL,
  result       bytea
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS {index:sweep} ON {table} (sweep_after);
