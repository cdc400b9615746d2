package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDeskCommitsOrderAndMessageOrNeither(t *testing.T) {
	d, err := openDesk(t.Context(), sqliteDSN(filepath.Join(t.TempDir(), "desk.db")), "orders")
	require.NoError(t, err)
	defer func() { require.NoError(t, d.close()) }()
	require.NoError(t, d.take(t.Context(), "order-0001", false))
	require.NoError(t, d.take(t.Context(), "order-0001", false), "it comes again")
	require.NoError(t, d.take(t.Context(), "declined-0001", true))
	require.NoError(t, d.take(t.Context(), "order-0002", false))
	orders, messages, err := d.committed(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{2, 2}, []int{orders, messages})

	pending, err := d.pending(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"order-0001": true, "order-0002": true}, pending)
	_, err = d.db.Exec("UPDATE idemq_outbox SET state = 1 WHERE id = 'order-0001'")
	require.NoError(t, err)
	pending, err = d.pending(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"order-0002": true}, pending)
}
