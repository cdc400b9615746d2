package testenv

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Proxy stands between a client and a server and breaks what passes, on command. Its methods
// hold for open connections and for new ones, and are for one goroutine.
type Proxy struct {
	Addr  string // where clients connect
	tb    testing.TB
	proxy *toxiproxy.Proxy
}

// The two faults, by the names under which they are added and taken away.
const (
	slow   = "slow"
	silent = "silent"
)

// NewProxy starts a proxy in front of upstream, which need not be there yet. It ends with the test.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, tb.Name(), "127.0.0.1:0", upstream)
	if err := p.Start(); err != nil {
		tb.Fatalf("proxy: start: %v", err)
	}
	tb.Cleanup(p.Stop)
	return &Proxy{Addr: p.Listen, tb: tb, proxy: p}
}

// Cut closes all connections and refuses new ones, until Mend.
func (p *Proxy) Cut() { p.proxy.Stop() }

// Mend accepts connections again, on the same address.
func (p *Proxy) Mend() {
	p.tb.Helper()
	if err := p.proxy.Start(); err != nil {
		p.tb.Fatalf("proxy: mend: %v", err)
	}
}

// Delay holds back each answer for d; 0 ends that.
func (p *Proxy) Delay(d time.Duration) {
	p.tb.Helper()
	p.remove(slow)
	if d > 0 {
		p.add(slow, "latency", map[string]any{"latency": d.Milliseconds()})
	}
}

// DropAnswers lets requests through to the server and throws its answers away, until
// PassAnswers: the client cannot know what was done.
func (p *Proxy) DropAnswers() {
	p.tb.Helper()
	p.add(silent, "timeout", map[string]any{"timeout": 0})
}

// PassAnswers ends DropAnswers. The connections that were open are closed: with an answer
// missing from it, none of them can be used any more.
func (p *Proxy) PassAnswers() {
	p.tb.Helper()
	p.remove(silent)
}

func (p *Proxy) add(name, kind string, attributes map[string]any) {
	p.tb.Helper()
	toxic, err := json.Marshal(map[string]any{"name": name, "type": kind, "stream": "downstream", "attributes": attributes})
	if err != nil {
		p.tb.Fatalf("proxy: %s: %v", name, err)
	}
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(string(toxic))); err != nil {
		p.tb.Fatalf("proxy: %s: %v", name, err)
	}
}

func (p *Proxy) remove(name string) {
	p.tb.Helper()
	if p.proxy.Toxics.GetToxic(name) == nil {
		return
	}
	if err := p.proxy.Toxics.RemoveToxic(context.Background(), name); err != nil {
		p.tb.Fatalf("proxy: end %s: %v", name, err)
	}
}
