package shop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

func TestWhatABrowserSendsTwiceIsOrderedOnce(t *testing.T) {
	chromium := startChromium(t)
	s := openSite(t)
	for _, c := range []struct {
		name   string
		orders int
		visit  func(v *tab)
	}{
		{"double click", 1, func(v *tab) {
			v.checkout()
			v.do(chromedp.DoubleClick(button), chromedp.WaitVisible("#receipt"))
		}},
		{"second click while the first is not answered", 1, func(v *tab) {
			v.checkout()
			box := get(v, chromedp.Dimensions(button)).Content
			click := chromedp.MouseClickXY((box[0]+box[4])/2, (box[1]+box[5])/2)
			hurry := v.sent.slowDown()
			defer hurry()
			for range 2 {
				v.do(click)
				v.await(1)
			}
			hurry()
			v.do(chromedp.WaitVisible("#receipt"))
		}},
		{"reload of the page after it", 1, func(v *tab) {
			v.checkout()
			v.do(chromedp.Click(button), chromedp.WaitVisible(thanks))
			v.do(chromedp.Reload(), chromedp.WaitVisible(already))
			v.await(2)
			v.screenshot("shop-reload.png")
		}},
		{"back and once more", 1, func(v *tab) {
			token := v.checkout()
			v.do(chromedp.Click(button), chromedp.WaitVisible(thanks))
			v.do(chromedp.NavigateBack(), chromedp.WaitVisible(button))
			require.Equal(v.T, token, v.token(), "the browser has kept the page")
			v.do(chromedp.Click(button), chromedp.WaitVisible(already))
			v.await(2)
		}},
		{"two tabs with one page", 1, func(v *tab) {
			token := v.checkout()
			twin := v.duplicate()
			require.Equal(v.T, token, twin.token())
			v.do(chromedp.Click(button), chromedp.WaitVisible(thanks))
			twin.do(chromedp.Click(button), chromedp.WaitVisible(already))
			v.await(2)
		}},
		{"two tabs with a page each", 2, func(v *tab) {
			other := v.tab()
			require.NotEqual(v.T, v.checkout(), other.checkout())
			v.do(chromedp.Click(button), chromedp.WaitVisible(thanks))
			other.do(chromedp.Click(button), chromedp.WaitVisible(thanks))
		}},
		{"payment sent twice with one key", 1, func(v *tab) {
			v.checkout()
			v.do(chromedp.Click("#pay-twice"), chromedp.WaitVisible("#answers li:nth-child(2)"))
			v.await(2)
			require.Equal(v.T, 2, v.countOf(`#answers li[data-status="201"]`))
			require.Equal(v.T, 1, v.countOf(`#answers li[data-replayed="true"]`))
			v.screenshot("shop-checkout.png")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.count("shop_orders")
			v := s.visitor(t, chromium)
			c.visit(v)
			v.requireOrders(c.orders)
			require.Equal(t, c.orders, s.count("shop_orders")-before)
			require.Equal(t, s.count("shop_orders"), s.count("shop_ledger"))
			for len(s.sent.arrived) > 0 {
				<-s.sent.arrived
			}
		})
	}
}

// What the cases look at.
const (
	button  = "#order-button"
	thanks  = `#receipt[data-again="false"]`
	already = `#receipt[data-again="true"]`
)

// startChromium starts one browser for all visitors.
func startChromium(t *testing.T) (browser context.Context) {
	t.Helper()
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testenv.Chromium(t)), chromedp.WSURLReadTimeout(eventually), chromedp.WindowSize(820, 700),
		// Going back to a page that is still alive raises no event of its loading. As after some minutes, it is taken from the disk.
		chromedp.Flag("disable-features", "Translate,BackForwardCache"))...)
	t.Cleanup(stop)
	browser, closeBrowser := chromedp.NewContext(allocator)
	t.Cleanup(closeBrowser)
	require.NoError(t, chromedp.Do(browser))
	return browser
}

// tab is one of a visitor's, who has cookies of his own.
type tab struct {
	*site
	*testing.T
	ctx context.Context
}

func (s *site) visitor(t *testing.T, browser context.Context) *tab {
	t.Helper()
	return s.tabIn(t, browser, chromedp.WithNewBrowserContext())
}

// tab opens another one for the same visitor.
func (v *tab) tab() *tab {
	v.T.Helper()
	return v.tabIn(v.T, v.ctx)
}

func (s *site) tabIn(t *testing.T, parent context.Context, o ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, shut := chromedp.NewContext(parent, o...)
	t.Cleanup(shut)
	require.NoError(t, chromedp.Do(ctx)) // the tab lives as long as the context of its first call
	return &tab{s, t, ctx}
}

// duplicate opens the page that v shows in another tab, as the browser's own command for it does.
func (v *tab) duplicate() *tab {
	v.T.Helper()
	page, err := json.Marshal(get(v, chromedp.OuterHTML("html")))
	require.NoError(v.T, err)
	twin := v.tab()
	twin.checkout()
	twin.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.open(); document.write(%s); document.close()", page)))
	return twin
}

func (v *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	v.T.Helper()
	for i, a := range actions {
		ctx, cancel := context.WithTimeout(v.ctx, eventually)
		err := chromedp.Do(ctx, a)
		cancel()
		require.NoError(v.T, err, "action %d", i+1)
	}
}

// get is what an action answers.
func get[T any](v *tab, a chromedp.Action[T]) T {
	v.T.Helper()
	ctx, cancel := context.WithTimeout(v.ctx, eventually)
	defer cancel()
	answer, err := chromedp.Run(ctx, a)
	require.NoError(v.T, err)
	return answer
}

// checkout opens the form and returns its token.
func (v *tab) checkout() string {
	v.T.Helper()
	v.do(chromedp.Navigate(v.url+"/checkout"), chromedp.WaitVisible(button))
	return v.token()
}

func (v *tab) token() string {
	v.T.Helper()
	token := get(v, chromedp.Value("input[name=token]"))
	require.NotEmpty(v.T, token)
	return token
}

// countOf is how many elements a selector finds.
func (v *tab) countOf(selector string) int {
	v.T.Helper()
	return get(v, chromedp.Evaluate[int](fmt.Sprintf("document.querySelectorAll(%q).length", selector)))
}

// requireOrders looks into the ledger once everything is booked. The page reloads itself until then.
func (v *tab) requireOrders(n int) {
	v.T.Helper()
	v.do(chromedp.Navigate(v.url+"/ledger"), chromedp.WaitVisible(`#ledger[data-pending="0"]`))
	require.Equal(v.T, n, v.countOf("tr.yours"))
}
