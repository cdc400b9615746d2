package sqlstore

import (
	"context"
	"database/sql"
)

// lane is where beats go: the pool.
type lane struct {
	db *sql.DB
}

func (l *lane) run(ctx context.Context, f func(c conn) error) error { return f(nil) }

func (l *lane) reserve(ctx context.Context) (release func()) { return func() {} }
