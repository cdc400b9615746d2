CREATE TABLE IF NOT EXISTS {table} (
  seq         BIGINT         NOT NULL AUTO_INCREMENT,
  created_at  BIGINT         NOT NULL,
  sent_at     BIGINT         NULL,
  lane        BIGINT         NOT NULL,
  attempts    INT            NOT NULL,
  shard       SMALLINT       NOT NULL,
  state       TINYINT        NOT NULL,
  other       TINYINT        NOT NULL DEFAULT 0 CHECK (other = 0),
  content     VARBINARY(16)  NOT NULL,
  id          VARBINARY(255) NOT NULL,
  topic       VARCHAR(512)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  msg_key     VARCHAR(1024)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  last_error  VARCHAR(1024)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  headers     LONGBLOB       NULL,
  body        LONGBLOB       NULL,
  PRIMARY KEY (seq),
  UNIQUE KEY {index:id} (id),
  KEY {index:pending} (state, seq, shard, lane),
  KEY {index:sent} (sent_at)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {beside:shards} (
  shard       SMALLINT       NOT NULL,
  token       VARBINARY(16)  NOT NULL,
  lease_until BIGINT         NOT NULL,
  PRIMARY KEY (shard)
) ENGINE = InnoDB;
INSERT INTO {beside:shards} (shard, token, lease_until)
  WITH RECURSIVE n (shard) AS (SELECT 0 UNION ALL SELECT shard + 1 FROM n WHERE shard < 64) SELECT n.shard, '', 0 FROM n
  ON DUPLICATE KEY UPDATE lease_until = {beside:shards}.lease_until;
CREATE TABLE IF NOT EXISTS {beside:relays} (
  token       VARBINARY(16)  NOT NULL,
  name        VARCHAR(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  alive_until BIGINT         NOT NULL,
  PRIMARY KEY (token)
) ENGINE = InnoDB;
