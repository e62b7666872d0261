package main

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

var update = flag.Bool("update", false, "write the golden files anew")

var noon = time.Date(2026, time.March, 2, 12, 0, 0, 0, time.UTC)

// sessions has one of each kind.
var sessions = []activity.Session{
	{BackendType: "checkpointer", PID: 1},
	{BackendType: "client backend", PID: 50, User: "cnpg_metrics_exporter", Application: "cnpg_metrics_exporter", Database: "app", State: "idle", Local: true},
	{BackendType: "client backend", PID: 40, User: "app", Application: "web", Database: "app", State: "idle", IdleFor: 90 * time.Second, Peer: netip.MustParseAddrPort("10.0.0.9:4711")},
	{BackendType: "client backend", PID: 30, User: "app", Application: "pgAdmin 4", Database: "app", State: "idle in transaction", IdleFor: time.Second, Peer: netip.MustParseAddrPort("[fd00::9]:4711")},
	{BackendType: "client backend", PID: 60, User: "monitoring", Database: "app", State: "active", Local: true},
	{BackendType: "walsender", PID: 70, User: "streaming_replica", Application: "d-1", State: "active", Peer: netip.MustParseAddrPort("10.0.0.7:1")},
	{BackendType: "pg_cron", PID: 80, User: "postgres", Database: "app", State: "active"},
}

func described(rules activity.Rules, blockers []idle.Reason, worker *contract.Report, sessions ...activity.Session) explanation {
	var tally activity.Tally
	for _, s := range sessions {
		tally.Add(s, rules)
	}
	return describe(noon, tally, blockers, sessions, rules, worker)
}

func TestDescribe_isGolden(t *testing.T) {
	t.Parallel()
	idleFor, since, due := 300.0, noon.Add(-5*time.Minute), noon.Add(25*time.Minute)
	rules := activity.Rules{Ignore: []idle.Pattern{{User: "monitoring"}}}
	queries := rules
	queries.Queries = true
	for name, e := range map[string]explanation{
		"nobody":      described(rules, nil, nil),
		"connections": described(rules, []idle.Reason{idle.ReasonPreparedTransaction}, nil, sessions...),
		"queries":     described(queries, nil, nil, sessions[1:3]...),
		"worker": described(rules, nil, &contract.Report{
			Pod: "c-1", Known: true, SocketEvents: true, IdleSince: &since, IdleForSeconds: &idleFor, LastActivity: &since, SleepDue: &due,
			Reason: "waiting", Blockers: []string{"waiting", "backup_running"}, LastUnseenClient: "10.0.0.9",
			Rules: contract.ReportedRules{Enabled: true, ThresholdSeconds: 1800},
		}),
		"unknown": described(rules, nil, &contract.Report{Pod: "c-1", Reason: "unknown", Rules: contract.ReportedRules{Enabled: true}}),
		"off":     described(rules, nil, &contract.Report{Pod: "c-1", Reason: "disabled"}),
		"scheduler": described(rules, nil, &contract.Report{
			Pod: "c-1", Known: true, SocketEvents: true, Scheduler: true, Reason: "waiting", ServerBlockers: []string{"advisory_lock"},
			Rules: contract.ReportedRules{Enabled: true, ThresholdSeconds: 1800},
		}),
		"ignored": described(rules, nil, &contract.Report{
			Pod: "c-1", Known: true, SocketEvents: true, Reason: "waiting", IgnoredPods: "client=10.0.0.0/8 contains 10.244.0.5, the address of c-1",
			Rules: contract.ReportedRules{Enabled: true, ThresholdSeconds: 1800},
		}),
		"dozing": described(rules, nil, &contract.Report{Pod: "c-1", Reason: "dozing", Rules: contract.ReportedRules{Enabled: true}}),
		"dozeless": described(rules, nil, &contract.Report{
			Pod: "c-1", Known: true, SocketEvents: true, Reason: "waiting", DozeBlockers: []string{"wake_manual", "pod_made_before"},
			Rules: contract.ReportedRules{Enabled: true, ThresholdSeconds: 1800},
		}),
		"gvisor": described(rules, nil, &contract.Report{Pod: "c-1", Known: true, Reason: "waiting", Rules: contract.ReportedRules{Enabled: true}}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text, json strings.Builder
			if err := e.writeText(&text); err != nil {
				t.Fatal(err)
			}
			if err := e.writeJSON(&json); err != nil {
				t.Fatal(err)
			}
			for file, got := range map[string]string{name + ".txt": text.String(), name + ".json": json.String()} {
				path := filepath.Join("testdata", file)
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", file, diff)
				}
			}
		})
	}
}
