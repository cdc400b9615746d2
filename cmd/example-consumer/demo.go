package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// demo runs all subjects on one schedule, side by side, and prints what became of the orders.
func demo(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	s := newSchedule(c.seed, c.orders)
	log := newProgress(stderr)
	log.say("%d orders, %d messages, seed %d; children are killed at %d points", len(s.orders), len(s.published), c.seed, len(s.kills))
	var folder string // of the outboxes
	if c.outbox {
		log.say("%d transactions, of which %d are rolled back; relays are killed at %d points", len(s.requests), len(s.declined), len(s.relayKills))
		var err error
		if folder, err = os.MkdirTemp("", "idemq-example-outbox-"); err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		s = s.throughOutbox()
	}
	var out io.Writer
	if c.verbose {
		out = &tail{also: stderr}
	}
	name := fmt.Sprintf("example-%d", time.Now().UnixNano())
	b, err := c.servers.broker()
	if err != nil {
		return err
	}
	defer b.close()
	trials := []*trial{
		newTrial(setnxSubject, name+"-setnx", s, c.servers, b, log, out),
		newTrial(idemqSubject, name+"-idemq", s, c.servers, b, log, out),
		newTrial(txSubject, name+"-tx", s, c.servers, b, log, out),
	}
	if c.outbox {
		for _, t := range trials {
			t.dsn = sqliteDSN(filepath.Join(folder, t.topic+".db"))
		}
	}
	err = runAll(ctx, trials, log)
	cleanUp(ctx, trials, log)
	if err != nil {
		return err
	}
	return conclude(trials, c.json, stdout)
}

// runAll runs trials side by side.
func runAll(ctx context.Context, trials []*trial, log *progress) error {
	errs := make([]error, len(trials))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for i, t := range trials {
		all.Go(func() {
			if errs[i] = t.run(ctx); errs[i] != nil {
				cancel() // one column alone shows nothing
				return
			}
			log.say("%s: through", t.subject)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// cleanUp removes topics and queues and the table of effects; what the stores remember expires.
func cleanUp(ctx context.Context, trials []*trial, log *progress) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, t := range trials {
		if err := t.broker.remove(ctx, t.topic, t.topic); err != nil {
			log.say("%s: topics or queues are left behind: %v", t.subject, err)
		}
		if err := t.dropEffects(ctx); err != nil {
			log.say("%s: table %s is left behind: %v", t.subject, t.effects.table, err)
		}
	}
}

// conclude prints the table, and fails if a column of idemq does not add up.
func conclude(trials []*trial, asJSON bool, stdout io.Writer) error {
	var columns []tally
	var wrong []string
	for _, t := range trials {
		column := t.director.ledger.tally(t.subject)
		if column.Outbox = t.passage; t.passage != nil {
			for _, w := range t.passage.check(t.plan) {
				wrong = append(wrong, t.subject+": "+w)
			}
		}
		columns = append(columns, column)
		switch t.subject {
		case idemqSubject, txSubject:
			wrong = append(wrong, t.director.ledger.check(t.plan)...)
		default:
			for _, w := range t.director.ledger.unplaced(t.plan) {
				wrong = append(wrong, t.subject+": "+w)
			}
		}
	}
	if err := show(stdout, columns, asJSON); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the run does not add up:\n  %s", strings.Join(wrong, "\n  "))
	}
	return nil
}

func show(w io.Writer, columns []tally, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(columns)
	}
	_, err := io.WriteString(w, table(columns)+"\n"+words(columns))
	return err
}
