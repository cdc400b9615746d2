package testenv

import "go.uber.org/goleak"

// LeaksOfProxies are for goleak in packages whose tests cut connections by a Proxy: where one is closed
// while a chunk is on its way from one of its goroutines to the next, toxiproxy leaves both waiting.
func LeaksOfProxies() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
	}
}
