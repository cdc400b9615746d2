// Package tierstore puts a fast store in front of one that decides: Redis answers the duplicates,
// SQL grants the runs.
//
//	decider, err := sqlstore.New(db, sqlstore.PostgreSQL, nil)
//	front := redisstore.New(client, &redisstore.Options{AllowEviction: true})
//	guard, err := dedup.New("billing", tierstore.New(decider, front), nil)
//
// It has every port of the decider, the verdict inside the caller's transaction included, and keeps
// every rule of the port whatever becomes of Redis: a lost, late or old Redis makes it slower, not
// wrong, but for the two windows that are named below.
//
// # What Redis may say
//
// "Done", with the stored result, and "mismatch", which is "done" of other content. Only of a verdict
// whose commit was confirmed: nothing is copied before. Redis alone never says that work may run, nor that
// it runs elsewhere. What it does not know, SQL is asked for, one batch for all of it.
//
// A copy comes from the owner, after its commit, or from the first duplicate for which SQL had to be asked.
// Either way it is compare-and-set: before SQL is asked, a token of this one question is
// placed in Redis, and the copy is taken only where that token still stands. Forget deletes in SQL, then
// in Redis, copy and token. So a copy that was under way when the verdict was forgotten
// finds its token gone, and the message that is sent again on purpose runs.
//
// A copy ends no later than SQL's row: it stands for what SQL said is left, counted from the moment
// at which the token was placed, which was before SQL said so. Redis's clock measures that alone, and a
// request that was long under way gains no time by it.
//
// A fingerprint that differs is a mismatch only where the record's is known: from its owner. A copy that was
// learned from an answer knows only that the record has the asker's fingerprint or none, so an asker with another
// one is sent to SQL.
//
// # What each level costs
//
// A duplicate: one script call in Redis, no statement in SQL. Anything else: that call, SQL, and, for a
// batch in which something is done, a second call after the verdict stands. Each call of Redis is bounded by
// Options.Timeout, so a slow one delays a claim, and a finish whose verdict is written already, by that
// much at most; a copy that does not make it in time is left to the next duplicate. After three faults in a row
// Redis is left alone for Options.Pause, at no cost, then one call tries again.
//
// Redis keeps, for each message, a copy for its retention: 120 bytes by MEMORY USAGE, 136 with a fingerprint,
// about 57 in the server's tables, and the result; before that, for 10 minutes at most, a token of 136. Results above Options.MaxResult are not copied. Work that takes
// longer than 10 minutes leaves no copy itself; the first duplicate does.
//
// # What happens when
//
// Each row is a test (rows_test.go) with real servers. Counted is what [Store.Stats] tells; a claim that SQL is asked
// for is always counted as Asked, one that Redis answers as Answered.
//
//	    Redis                         SQL                   then                                  healed by                 counted
//	 1  copy                          anything              Redis: done, SQL is not asked         -                         Answered
//	 2  copy, other fingerprint,      anything              Redis: mismatch, SQL is not asked     -                         Answered
//	    the owner's
//	 3  copy without a fingerprint    done                  SQL answers                           its answer is the copy    Asked, Kept
//	 4  learned copy, other one       done                  SQL answers; the copy stays           -                         Asked
//	 5  nothing: never known,         done                  SQL answers; copied with the          the same                  Asked, Kept
//	    evicted, flushed, restarted                         time that SQL says is left
//	 6  nothing                       new, or free          SQL grants; copied once it is         -                         Asked, Kept
//	                                                        committed as done
//	 7  nothing                       in progress, failed,  SQL answers; nothing is copied        -                         Asked
//	                                  condemned, absent
//	 8  token of a later asker        done by the owner     the owner's copy is refused           the next duplicate        Refused
//	 9  down                          anything              SQL alone                             the first call after      Faults, Skipped
//	                                                                                              Options.Pause
//	10  slow                          anything              SQL alone after Options.Timeout       as 9                      Faults, Skipped
//	11  goes away after the claim     done                  the finish is nil; no copy            the next duplicate        Faults
//	12  flushed or restarted empty    done                  the owner's copy is refused           the next duplicate        Refused
//	    after the claim
//	13  went back to an earlier       done                  older copies are true, newer ones     as 5                      Asked, Kept
//	    state (fail-over)                                   are missing
//	14  went back to before a Forget  forgotten             Redis: done, for what is left of      Forget again              Answered
//	                                                        the copy
//	15  holds something else          anything              SQL alone; it is left as it is        Forget                    Faults
//	16  copy                          down, slow            Redis: done; other items of the       SQL                       Answered
//	                                                        batch are ErrUnavailable
//	17  nothing                       down, slow            an error; nothing runs                SQL                       Asked
//	18  down                          down                  an error; nothing runs                SQL                       Faults
//	19  token                         finish written, its   an error; repeated it is nil, and     the repeated finish       Kept
//	                                  reply lost            copied
//	20  token                         commit done, its      ErrUnavailable; nothing is copied;    the owner's next claim    Kept
//	                                  reply lost            the owner's next claim says done
//	21  token                         rolled back,          nothing is copied; SQL decides        -                         -
//	                                  conflict              again
//	22  its copy has ended            retention over        SQL: new                              -                         Asked
//	23  copy, or a late one under     forgotten             SQL: new; a late copy is refused      -                         Refused
//	    way
//	24  down                          forgotten             Forget is an error: Redis may still   Forget again              -
//	                                                        say done
//	25  copy                          went back to before   Redis: done, though SQL has lost      FlushFront before         Answered
//	                                  the commit            it                                    consumers resume
//	26  nothing: the result is long   done                  SQL answers every time                -                         Asked
//
// Rows 14 and 25 are the two windows. In 14 an operator's Forget is undone by a fail-over of Redis
// to before it: the message that was sent again is answered as done, and not run. In 25 an operator
// restores SQL, or fails over to a replica that lags: Redis then remembers what SQL does not. That
// is not healed by itself, because nothing tells the two apart from a database that is right:
//
// # After a restore of SQL
//
// Stop the consumers, restore, and then, before they start again,
//
//	removed, err := front.FlushFront(ctx) // of the redisstore.Store
//
// or give the front another Options.Prefix, which is the same and takes no time; the old
// copies end with their retention. What was done after the moment to which SQL went back, and is delivered again, then
// runs again, as it must: its rows are gone too.
//
// # Setting up Redis
//
// A Redis that does nothing else may evict what it likes (Options.AllowEviction of the redisstore.Store): a
// copy that is gone costs SQL one question. It needs no persistence and no replica. Give its client short
// timeouts and ContextTimeoutEnabled. It must not be read from replicas: one that lags behind a
// Forget is row 14.
package tierstore
