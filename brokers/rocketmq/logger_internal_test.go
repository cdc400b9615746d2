package rocketmq

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/rlog"
	"github.com/stretchr/testify/require"
)

func TestClientsLogArrivesWithItsLevelAndFields(t *testing.T) {
	var out bytes.Buffer
	var l rlog.Logger = clientLog{slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))}
	l.Debug("left out", nil)
	l.Info("one", map[string]any{"topic": "t", "broker": "b"})
	l.Warning("two", nil)
	l.Error("three", nil)
	l.Fatal("the process goes on", nil)
	l.Level("debug")
	require.NoError(t, l.OutputPath("/nowhere"))
	require.Equal(t, "level=INFO msg=one broker=b topic=t\nlevel=WARN msg=two\nlevel=ERROR msg=three\nlevel=ERROR msg=\"the process goes on\"\n", out.String())
}
