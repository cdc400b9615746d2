package rabbitmq

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestOnlyAPassiveSourceIsToldThatPassiveForbidsADeclaration(t *testing.T) {
	gone := &amqp.Error{Code: amqp.NotFound, Reason: "no process", Server: true}
	s := &Source{}
	require.NotContains(t, s.unprepared("q.dead", gone).Error(), "Passive")
	s.opt.Passive = true
	require.ErrorContains(t, s.unprepared("q.dead", gone), "SourceOptions.Passive forbids")
}
