package kafka_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
)

func TestSettingsBeyondAllMeasureAreRefused(t *testing.T) {
	brokers := []string{"127.0.0.1:1"}
	for want, o := range map[string]kafka.SourceOptions{
		"kafka: SourceOptions.MaxInFlight 9223372036854775807 is above 1048576":                 {MaxInFlight: math.MaxInt},
		"kafka: SourceOptions.Outage 2562047h47m16.854775807s is above 10 years":                {Outage: math.MaxInt64},
		"kafka: SourceOptions.SessionTimeout 2562047h47m16.854775807s is above 596h31m23.647s":  {SessionTimeout: math.MaxInt64},
		"kafka: SourceOptions.RebalanceTimeout 2562047h47m16.854775807s is above 596h31m23.647": {RebalanceTimeout: math.MaxInt64},
	} {
		_, err := kafka.NewSource(kafka.Cluster{Brokers: brokers}, "g", []string{"t"}, &o)
		require.ErrorContains(t, err, want)
	}
}
