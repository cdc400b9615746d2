package bench

import "testing"

// The benchmarks run here with few messages, so that they cannot rot; how quick they are is not
// looked at.

func TestClaimsAreMeasured(t *testing.T) {
	claimRates(t, newEnv(t), 2_048, 1)
}

func TestMemoryIsMeasured(t *testing.T) {
	storeMemory(t, newEnv(t), 2_000)
	consumerMemory(t, newEnv(t), 1_000, 2)
}

func TestThroughputOfEverySubjectIsMeasured(t *testing.T) {
	throughput(t, newEnv(t), loads[1], func(broker) int { return 300 }, 1)
}

func TestLatencyIsMeasured(t *testing.T) {
	latency(t, newEnv(t), 500, 100, 1)
}
