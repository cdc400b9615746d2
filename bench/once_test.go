package bench

import "testing"

// The benchmarks run here with next to nothing, so that they cannot rot; how quick anything is is not looked at.

func TestDrainsAreMeasured(t *testing.T) {
	for _, of := range []func(testing.TB) broker{newRabbitMQ, newKafka, newRocketMQ} {
		target := of(t)
		t.Run(target.name, func(t *testing.T) { drains(t, target, tiny) })
	}
}

func TestIdleRelaysAreMeasured(t *testing.T) { idles(t, tiny) }

func TestLatencyIsMeasured(t *testing.T) { latencies(t, tiny) }

func TestCostOfWriteIsMeasured(t *testing.T) { writes(t, tiny) }

func TestRequestsAreMeasured(t *testing.T) { requests(t, tiny) }

func TestHandlersAreMeasured(t *testing.T) { handlers(t, tiny) }
