package rocketmq

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// SetLogger routes the client library's log, which is one per process and floods by default, to l.
// A Source or Publisher never touches it: they log by options of their own. Call it before any
// client of the library is begun, which reads it without a lock.
func SetLogger(l *slog.Logger) { rlog.SetLogger(clientLog{l}) }

type clientLog struct{ to *slog.Logger }

func (c clientLog) log(level slog.Level, msg string, fields map[string]any) {
	ctx := context.Background()
	if !c.to.Enabled(ctx, level) {
		return
	}
	args := make([]slog.Attr, 0, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		args = append(args, slog.Any(name, fields[name]))
	}
	c.to.LogAttrs(ctx, level, msg, args...)
}

func (c clientLog) Debug(msg string, f map[string]any)   { c.log(slog.LevelDebug, msg, f) }
func (c clientLog) Info(msg string, f map[string]any)    { c.log(slog.LevelInfo, msg, f) }
func (c clientLog) Warning(msg string, f map[string]any) { c.log(slog.LevelWarn, msg, f) }
func (c clientLog) Error(msg string, f map[string]any)   { c.log(slog.LevelError, msg, f) }

// Fatal ends no process: that is the application's to decide.
func (c clientLog) Fatal(msg string, f map[string]any) { c.log(slog.LevelError, msg, f) }

// Level and OutputPath are slog's to decide.
func (clientLog) Level(string)            {}
func (clientLog) OutputPath(string) error { return nil }
