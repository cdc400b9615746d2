CREATE TABLE IF NOT EXISTS {table} (
  k           VARBINARY(64)  NOT NULL,
  state       TINYINT        NOT NULL,
  written_at  BIGINT         NOT NULL,
  topic       VARCHAR(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  head        MEDIUMBLOB     NULL,
  body        LONGBLOB       NULL,
  PRIMARY KEY (k),
  KEY {index:age} (state, written_at)
) ENGINE = InnoDB;
