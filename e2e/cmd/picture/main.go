// Command picture draws the picture of the dashboard: `picture record DIRECTORY` has a Prometheus scrape a small fleet on the cluster
// that KUBECONFIG names and leaves what it saw, and `picture draw DIRECTORY FILE` draws panels of the dashboard from that. PROMETHEUS
// is the program.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
	"github.com/cnpg-i/scale-to-zero/e2e/picture"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// panels are those that are drawn.
var panels = []string{
	"Asleep", "Dozing", "Awake", "Time asleep", "Saved CPU-hours", "Saved GiB-hours", "Saved money", "Not understood", "Not reconciled",
	"Clusters by state", "Never asleep, and why", "Most often woken", "Last woken, by whom",
	"State", "Idle time against threshold", "How long wakes took", "Wake latency",
}

// recording says what was recorded, in a file beside it.
type recording struct {
	Begin     time.Time `json:"begin"`
	End       time.Time `json:"end"`
	Namespace string    `json:"namespace"`
	Detail    string    `json:"detail"`
}

const recordingFile = "recording.json"

func main() {
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch arguments := os.Args[1:]; {
	case len(arguments) == 2 && arguments[0] == "record":
		err = record(ctx, arguments[1])
	case len(arguments) == 3 && arguments[0] == "draw":
		err = draw(ctx, arguments[1], arguments[2])
	default:
		err = fmt.Errorf("want record DIRECTORY, or draw DIRECTORY FILE")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func draw(ctx context.Context, directory, file string) error {
	body, err := os.ReadFile(filepath.Join(directory, recordingFile))
	if err != nil {
		return fmt.Errorf("read what was recorded: %w", err)
	}
	var r recording
	if err := json.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("decode what was recorded: %w", err)
	}
	p, err := scenario.OpenPrometheus(ctx, os.Getenv("PROMETHEUS"), directory)
	if err != nil {
		return err
	}
	defer func() { _ = p.Stop() }()
	if err := p.Await(ctx, "vector(1)", time.Minute); err != nil { // it listens before it has read its data
		return err
	}
	const step = 2 * time.Second
	source := picture.Source{
		API: p, Range: prometheusv1.Range{Start: r.Begin, End: r.End, Step: step},
		Variables: map[string]string{
			"namespace": r.Namespace, "detail": r.Detail, "operatorNamespace": scenario.OperatorNamespace,
			"__rate_interval": "30s", "__range": fmt.Sprintf("%ds", int(r.End.Sub(r.Begin).Seconds())),
		},
	}
	return picture.Write(ctx, file, monitoring.Excerpt(panels...), source)
}
