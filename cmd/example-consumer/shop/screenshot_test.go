package shop_test

import (
	"os"
	"path/filepath"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// screenshotVar, when it is set, makes the browser's test draw the pictures of docs anew.
const screenshotVar = "IDEMQ_SCREENSHOTS"

// screenshot draws the page as it is.
func (v *tab) screenshot(name string) {
	v.T.Helper()
	if os.Getenv(screenshotVar) == "" {
		return
	}
	png := get(v, chromedp.FullScreenshot(100)) // 100 is PNG
	require.Less(v.T, len(png), 150_000)
	require.NoError(v.T, os.WriteFile(filepath.Join("../../../docs", name), png, 0o644))
}
