// Package sqlstore is a dedup.Store in a SQL table, on PostgreSQL, MySQL or MariaDB, and SQLite; and the inbox
// that commits with your own rows.
//
//	db, err := sql.Open("pgx", dsn)
//	store, err := sqlstore.New(db, sqlstore.PostgreSQL, nil)
//	err = store.Migrate(ctx)
//	guard, err := dedup.New("billing", store, nil)
//
// # Drivers and servers
//
//	PostgreSQL >= 12               github.com/jackc/pgx/v5/stdlib
//	MySQL >= 8.0, MariaDB >= 10.6  github.com/go-sql-driver/mysql
//	SQLite >= 3.41                 modernc.org/sqlite
//
// All tests run on PostgreSQL 15, MariaDB 10.11 and SQLite 3.54. MySQL itself was not run: MariaDB stands in for
// it, and the statements use what the manuals of both have. A driver whose errors internal/sqldialect cannot
// read keeps the rules, but deadlocks are not tried again and errors do not say what to do.
//
// On MySQL leave interpolateParams off, or the character set of the connection utf8mb4. On SQLite set
// _pragma=busy_timeout(5000) and _pragma=journal_mode(WAL), and open the file in every process with the same clock.
//
// # Guarantee
//
// Every rule of the port, as long as the database keeps what it committed: a primary whose commits are
// flushed, not a replica, and not one restored or failed over to an earlier state. A claim whose record was lost is made
// again by its owner's next beat, a verdict by a Finish not yet answered; both report dedup.ErrRecordLost.
//
// With InTx effect and verdict are one commit. The claim is committed before, on its own; the
// transaction's last statement is UPDATE … SET state = done WHERE the key, the owner and the epoch are those of the
// claim and it is still in progress. No row means that another took over: everything is rolled back. So the effect
// happens once, whatever dies when, as long as all of it is in that transaction, and its end is left to InTx. Use ctx in its
// statements: one that waits without it is waited for.
//
// Do not end the transaction, and return the error of every statement that fails, or put a savepoint around one that
// may. Commit and Rollback in work that returns nil are answered dedup.ErrTxEnded. MySQL and SQLite roll a transaction
// back by themselves at some errors (a deadlock; OR ROLLBACK, an interrupted write, a full disk), and MySQL commits it
// before some statements (CREATE TABLE, TRUNCATE, LOCK TABLES, SET autocommit). So there it begins with SAVEPOINT idemq, and
// RELEASE SAVEPOINT idemq goes before the verdict: where that fails, for such a reason or for a COMMIT or ROLLBACK
// sent as text, no verdict is written. That is dedup.ErrConflict, so work is done again, and from the third time in a row of one
// claim on dedup.ErrTxEnded. What work wrote after its transaction had gone is committed by then, each statement by itself.
// PostgreSQL refuses everything after a failed statement; a COMMIT or ROLLBACK sent to it as text goes unseen, as anywhere a Commit
// before an error, and takes the guarantee with it.
//
// # Isolation
//
// Transactions are READ COMMITTED unless Options.Tx says otherwise. Above that, and where it leaves the level to the server, PostgreSQL's
// begin with one statement more, which locks the claim's row: a beat after the snapshot would make the verdict a serialization failure. The
// lock stands for the lease while the transaction lasts, however long, and its beats write nothing. So the lease
// does not bound the wait for the work of a process that stands still or a machine that is gone: the server's tcp_keepalives_idle and
// idle_in_transaction_session_timeout do, as for every other row that the work has locked. On MariaDB with
// innodb_snapshot_isolation (on by default from 11.6.2) leave Tx as it is, or keep work at REPEATABLE READ shorter than a third of its lease.
//
// # Clocks
//
// The server's clock decides leases and makes epochs: PostgreSQL's clock_timestamp, MySQL's UTC_TIMESTAMP of the statement's begin, whatever
// time zone the session has. No client's clock is sent. A claim that waited for a lock was measured from before
// the wait, so its lease ends no earlier than its owner believes. SQLite has no clock of its own: there
// it is the process's, and the file must not be shared by machines whose clocks differ.
//
// # What it costs
//
// A batch of up to 1,024 is one statement with a fixed text, whose parameters are arrays (PostgreSQL) or a JSON document:
//
//	                       PostgreSQL      MySQL, MariaDB    SQLite
//	claim of new keys      1               2                 2
//	claim of what is done  1               1                 1       no write, no lock
//	  or in progress
//	claim after a failure  2               3                 2
//	  or a lost lease
//	beat                   1               2                 1
//	finish                 1               1                 1
//	InTx                   BEGIN,          BEGIN,            BEGIN,
//	                       1, COMMIT       3, COMMIT         3, COMMIT
//	  above READ COMMITTED 1 more
//
// Each statement is a transaction of its own. What was repeated, lost or refused takes one or two more. Deadlocks and serialization failures
// (40001, 40P01, 1213, 1020) are tried three times in all, then the batch is halved until the contended row is alone, and the error
// is that item's. A lock wait that timed out halves at once.
//
// A finished row without a result takes about 490 bytes on PostgreSQL and 310 on MariaDB, indexes included.
//
// Rows that another transaction has locked are not waited for by beats and by takeovers: a beat
// looks again for a tenth of a second and then answers an error for that claim only; a takeover answers InProgress. Who asks
// for its own claim waits, because it may be its own commit.
//
// # Connections
//
// A call needs one connection at a time. While transactions of InTx run, one more is kept for beats, so
// that they go out even when transactions hold all others, if SetMaxOpenConns allows three or more: one transaction fewer than that runs at a time. Give
// the pool one connection for each handler and a few more for claims, verdicts and beats, and SetMaxIdleConns as many: database/sql keeps two by default and opens the rest anew for
// each call. On SQLite there is one writer: beats wait while a transaction writes, so keep each well below
// the lease.
//
// Statements need SELECT, INSERT, UPDATE and DELETE on the table, SELECT on idemq_schema; Migrate needs the right to create tables.
// Behind PgBouncer in transaction mode tell pgx so (default_query_exec_mode=exec); no session state is used.
//
// # Table
//
// [Store.Migrate] makes it, and notes its version in the table idemq_schema. Times are microseconds since 1970.
//
//	k            32 bytes: SHA-256 of application, scope and ID. The primary key. Neither scope nor ID is stored: the port does not tell them.
//	state        2 in progress, 3 done, 4 retryable, 5 failed, 6 released, 7 condemned
//	owner        16 bytes: token of the last owner, kept after the end so that a repeated call is known
//	epoch        fencing token: max(previous + 1, clock in milliseconds)
//	revision     grows with every write; what was read is replaced only if it is the same still
//	attempts     failures that were reported
//	crashes      owners that vanished without a word
//	alone        1: the owner said that it runs alone
//	redrive      number of the last redrive
//	fingerprint  16 bytes of a hash of the content; null: not compared
//	holder       which process holds it, up to 255 bytes; empty when nobody does
//	last_error   why it failed or was condemned, up to 1 KiB
//	result       of what is done, up to Options.MaxResult; null: none
//	claimed_at   when the last claim was made
//	lease_until  until when the owner is believed; null: nobody holds it
//	expires_at   end of retention: from then on the key is new
//	sweep_after  the same in minutes, rounded up: the sweeper's index, which a beat or a verdict in the same minute leaves alone
//
// Text that a column cannot hold (NUL, invalid UTF-8) is stored with U+FFFD instead. A row that cannot be read so is an error of
// its item; it is neither acquired nor done, is not overwritten, and [Store.Forget] removes it.
//
// Nothing is deleted to release a claim. [Store.SweepBatch] deletes what expired, 250 rows at a time, one
// process at a time; a Guard's Sweep, and with it every consumer, calls it.
package sqlstore
