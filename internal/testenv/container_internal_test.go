package testenv

import (
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/stretchr/testify/require"
)

func TestKafkaContainerListensWhereItAdvertisesAndIsPublished(t *testing.T) {
	r := kafkaRequest(40123)
	require.Equal(t, []string{"40123/tcp"}, r.ExposedPorts)
	require.Equal(t, "PLAINTEXT://127.0.0.1:40123", r.Env["KAFKA_ADVERTISED_LISTENERS"])
	require.Contains(t, r.Env["KAFKA_LISTENERS"], "PLAINTEXT://:40123,")
	var h container.HostConfig
	r.HostConfigModifier(&h)
	require.Equal(t, "40123", h.PortBindings[network.MustParsePort("40123/tcp")][0].HostPort)
}
