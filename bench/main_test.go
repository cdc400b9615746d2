package bench

import (
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/idemq/idemq/brokers/rocketmq"
)

// sizes is how much is measured.
type sizes struct {
	rounds        int
	rows          int           // committed messages of one drain
	watermillRows int           // of one drain by watermill's forwarder
	transactions  int           // of one run of the cost of Write
	commits       int           // of one run of the latency
	requests      int           // of one run over HTTP
	idle          time.Duration // of an idle relay
}

// full is what the benchmarks measure, and tiny what the test of them does.
var (
	full sizes
	tiny = sizes{rounds: 1, rows: 1_200, watermillRows: 60, transactions: 20, commits: 40, requests: 100, idle: time.Second}
)

func TestMain(m *testing.M) {
	flag.IntVar(&full.rounds, "rounds", 3, "rounds of each subject, of which the medians are printed")
	flag.IntVar(&full.rows, "rows", 50_000, "committed rows of one drain")
	flag.IntVar(&full.watermillRows, "watermill-rows", 5_000, "the same for watermill's forwarder, of which the rate is looked at, not the time")
	flag.IntVar(&full.transactions, "transactions", 2_000, "transactions of one run of the cost of Write")
	flag.IntVar(&full.commits, "commits", 2_000, "commits of one run of the latency, 200 a second")
	flag.IntVar(&full.requests, "requests", 20_000, "requests of one run over HTTP")
	flag.DurationVar(&full.idle, "idle", 10*time.Second, "how long an idle relay is looked at")
	rocketmq.SetLogger(slog.New(slog.DiscardHandler)) // RocketMQ's client library logs per process
	os.Exit(m.Run())
}

var names atomic.Int64

// newName is good for a topic, a queue and a table.
func newName() string { return fmt.Sprintf("bench_%d_%d", time.Now().UnixNano(), names.Add(1)) }

// cpu is what this process has used: on a machine that others use, too, it tells more than the time that passed.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

// count prints a large number: 12,345.
func count(x float64) string {
	s := strconv.FormatFloat(math.Abs(x), 'f', 0, 64)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	if x < 0 {
		s = "-" + s
	}
	return s
}

// spread prints the median, and the extremes where there are others.
func spread(xs []float64) string {
	if len(xs) == 1 {
		return count(xs[0])
	}
	return fmt.Sprintf("%s (%s – %s)", count(median(xs)), count(slices.Min(xs)), count(slices.Max(xs)))
}

func millis(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) + " ms"
}

// table is one of Markdown.
type table [][]string

func newTable(head ...string) *table {
	line := make([]string, len(head))
	for i := range line {
		line[i] = "---"
	}
	return &table{head, line}
}

func (t *table) add(cells ...string) { *t = append(*t, cells) }

// print writes to the standard output, where lines are not indented: they are to be pasted.
func (t *table) print(title string) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n", title)
	for _, row := range *t {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	fmt.Println(b.String())
}
