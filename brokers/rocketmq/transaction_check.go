package rocketmq

import (
	"context"
	"errors"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

const (
	checkWorkers = 8
	checkRoom    = 1024 // questions that wait; of more the broker asks again
	checkTimeout = 5 * time.Second
)

var errForeign = errors.New("the half message was sent with another table of markers, or by another kind of producer; one group must have one table in one database, and no other producers")

// hear takes what brokers say unasked. It must not wait: answers to calls come the same way.
func (p *TransactionProducer) hear(cn *conn, c *command) {
	if c.Code != tellCheck {
		return
	}
	q, ok := readCheck(cn, c)
	if !ok {
		if p.quiet.allow("unread") {
			p.log.Error("rocketmq: a broker asks about a half message that cannot be read; it is not answered", "broker", cn.addr)
		}
		return
	}
	select {
	case p.told <- q:
	default:
		if p.quiet.allow("room") {
			p.log.Warn("rocketmq: more check-backs come than can be answered; the broker will ask again", "broker", cn.addr)
		}
	}
}

// answers serves the questions until ctx ends.
func (p *TransactionProducer) answers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-p.told:
			p.answer(ctx, q)
		}
	}
}

// answer says how a transaction ended, whichever process of the group it was of. Where that cannot be known it says nothing:
// the broker asks again.
func (p *TransactionProducer) answer(ctx context.Context, q check) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	word, err := p.verdict(ctx, q)
	if err == nil {
		_, err = q.cn.ask(ctx, endOf(q.at, p.wireGroup, q.key, word, true))
	}
	switch {
	case err != nil && p.quiet.allow("answer"):
		p.log.Warn("rocketmq: a check-back could not be answered; the broker will ask again", "key", q.key, "error", err)
	case err == nil && word == sayCommit:
		p.confirm(q.key)
	}
}

// verdict reads the marker. Where there is none it writes a tombstone in its place, and says "rollback"
// only once that is committed: from then on the transaction cannot commit any more.
func (p *TransactionProducer) verdict(ctx context.Context, q check) (word int, err error) {
	home, err := p.markers.home(ctx)
	if err != nil {
		return 0, err
	}
	if q.group != p.wireGroup || q.home != home {
		return 0, errForeign
	}
	for {
		switch mark, err := p.markers.look(ctx, q.key); {
		case err != nil:
			return 0, err
		case mark == markCommitted || mark == markConfirmed:
			return sayCommit, nil
		case mark == markTombstone:
			return sayRollback, nil
		}
		err = p.markers.bury(ctx, q.key)
		if err == nil {
			return sayRollback, nil
		}
		if sqldialect.Classify(p.markers.dialect, err) != sqldialect.Duplicate {
			return 0, err // a lock that was not to be had in time is a transaction that still runs
		}
	}
}
