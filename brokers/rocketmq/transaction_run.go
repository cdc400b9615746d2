package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

// Run connects to all brokers and answers their check-backs, also those about transactions of processes
// that have died, until ctx ends; it then waits for the calls of Send under way. It confirms and sweeps
// markers meanwhile. An error is one that waiting cannot help: a table that is missing, a right, a
// TransactionOptions.Retention that is shorter than brokers ask. Run can be called once.
func (p *TransactionProducer) Run(ctx context.Context) error {
	p.mu.Lock()
	again := p.running
	p.running = true
	p.mu.Unlock()
	if again {
		return errors.New("rocketmq: run: it was called before; make a new TransactionProducer")
	}
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the calls of Send have ended
	var loops sync.WaitGroup
	err := p.awaitTable(ctx)
	if err == nil {
		for range checkWorkers {
			loops.Go(func() { p.answers(lasting) })
		}
		loops.Go(func() { p.confirms(lasting) })
		loops.Go(func() { p.sweeps(lasting) })
		err = p.keepUp(ctx)
	}
	p.mu.Lock()
	close(p.ending)
	p.mu.Unlock()
	p.work.Wait()
	stop()
	loops.Wait()
	p.leave(ctx)
	if err != nil {
		return fmt.Errorf("rocketmq: run: %w", err)
	}
	return nil
}

// awaitTable waits for the database.
func (p *TransactionProducer) awaitTable(ctx context.Context) error {
	for n := 1; ctx.Err() == nil; n++ {
		_, err := p.markers.home(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if sqldialect.Answered(p.markers.dialect, err) || errors.Is(err, errNoHome) {
			return err
		}
		if p.quiet.allow("table") {
			p.log.Warn("rocketmq: the database with the markers does not answer; trying again", "error", err)
		}
		sleep(ctx, backoff(n))
	}
	return nil
}

// keepUp tells all brokers that the process lives, again and again, until ctx ends.
func (p *TransactionProducer) keepUp(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; {
		known, err := p.greetAll(ctx)
		if known > 0 {
			p.becomeReady()
		}
		wait := balanceEvery
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
			p.quiet.forget("greet")
		case classify(err) == terminal || errors.Is(err, errRetention):
			return err
		default:
			failures++
			wait = backoff(failures)
			if p.quiet.allow("greet") {
				p.log.Warn("rocketmq: not all brokers know this producer, so some cannot ask it; trying again", "error", err)
			}
		}
		sleep(ctx, wait)
	}
	return nil
}

func (p *TransactionProducer) becomeReady() {
	select {
	case <-p.ready:
	default:
		close(p.ready)
	}
}

// greetAll answers how many brokers know the process now.
func (p *TransactionProducer) greetAll(ctx context.Context) (known int, err error) {
	addrs, err := p.client.masters(ctx)
	if err != nil {
		return 0, err
	}
	if len(addrs) == 0 {
		return 0, errors.New("the name server knows no broker")
	}
	var errs []error
	for _, addr := range addrs {
		cn, err := p.client.connect(ctx, addr)
		if err == nil {
			err = p.greet(ctx, cn)
		}
		if err == nil {
			known++
		} else {
			errs = append(errs, fmt.Errorf("heartbeat to broker %s: %w", addr, err))
		}
	}
	return known, errors.Join(errs...)
}

// greet sends a heartbeat, and reads the broker's settings if it is the first one on this connection.
func (p *TransactionProducer) greet(ctx context.Context, cn *conn) error {
	call, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	if p.asked[cn.addr] != cn {
		all, err := cn.config(call)
		if err != nil && !refused(err) {
			silent(ctx, cn, err)
			return err
		}
		if err != nil {
			p.log.Info("rocketmq: the broker does not let its settings be read; it is taken to ask about half messages as brokers do by default", "broker", cn.addr, "error", err)
		}
		if err := p.learn(horizonOf(all)); err != nil {
			return err
		}
	}
	if err := cn.greetAsProducer(call, p.id, p.wireGroup); err != nil {
		silent(ctx, cn, err)
		return err
	}
	p.asked[cn.addr] = cn
	return nil
}

var errRetention = errors.New("a marker could be gone while a broker still asks for it, and the message, committed, would be rolled back")

// learn refuses a broker that asks longer than markers are kept.
func (p *TransactionProducer) learn(horizon time.Duration) error {
	if p.opt.Retention <= horizon {
		return fmt.Errorf("TransactionOptions.Retention %v is not longer than the %v for which the broker asks about a half message (transactionTimeOut + transactionCheckMax * transactionCheckInterval): %w; raise Retention", p.opt.Retention, horizon, errRetention)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 || horizon > p.horizon {
		p.horizon = horizon
	}
	return nil
}

// The settings of brokers as they are by default: the interval is that of 4.x, 5.x has half of it.
const (
	checkAfter = 6 * time.Second
	checkEvery = time.Minute
	checkMost  = 15
)

// longestHorizon is what is assumed of a broker that does not tell.
const longestHorizon = checkAfter + (checkMost+1)*checkEvery

// horizonOf is how long a broker with these settings asks about a half message, and one round more
// until it gives it up.
func horizonOf(all map[string]string) time.Duration {
	read := func(name string, or int64) int64 {
		if n, err := strconv.ParseInt(all[name], 10, 64); err == nil && n >= 0 {
			return min(n, 1<<40)
		}
		return or
	}
	after := time.Duration(read("transactionTimeOut", checkAfter.Milliseconds())) * time.Millisecond
	every := time.Duration(read("transactionCheckInterval", checkEvery.Milliseconds())) * time.Millisecond
	return after + time.Duration(read("transactionCheckMax", checkMost)+1)*every
}

// leave writes what is still to be confirmed, tells the brokers that the process is gone and ends the connections.
func (p *TransactionProducer) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	p.confirmAll(ctx)
	for _, cn := range p.asked {
		if cn.alive() {
			_ = cn.leaveAsProducer(ctx, p.id, p.wireGroup) // else the broker sees the connection end
		}
	}
	p.client.close()
}
