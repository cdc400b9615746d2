package testenv

import (
	"os"
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

func TestSQLContainersAreThoseOfTheComposeFile(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	require.Contains(t, string(text), "image: "+postgresImage+"\n")
	require.Contains(t, string(text), "image: "+mysqlImage+"\n")
	for _, setting := range []string{"POSTGRES_USER", "MARIADB_USER", "MARIADB_DATABASE", "POSTGRES_DB"} {
		require.Contains(t, string(text), setting+": "+sqlName)
	}
}
