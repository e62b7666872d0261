package monitoring

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSavedTimeCountsOnce has promtool add up a day of sleep of a cluster that requests one core, as the README and the
// dashboard do, while pods of the plugin come and go: p's container is started anew after six hours and p's pod is replaced
// after twelve, and q stays.
func TestSavedTimeCountsOnce(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	test := "evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n"
	const series = "      - series: 'cnpg_scale_to_zero_%s_cpu_seconds_total{namespace=\"shop\", cluster=\"blue\", pod=%q}'\n        values: %q\n"
	for pod, values := range map[string]string{"p1": "0+60x360 0+60x358 stale", "p2": "_x720 0+60x720", "q": "0+60x1440"} {
		test += fmt.Sprintf(series, "saved", pod, values)
	}
	test += fmt.Sprintf(series, "sidecar", "q", "0x1440") + "    promql_expr_test:\n"
	for _, expression := range append(quoted(t), asked(t, "Saved CPU-hours")) {
		test += fmt.Sprintf("      - expr: %q\n        eval_time: 1d\n        exp_samples: [{value: 24}]\n", "round(10 * ("+expression+")) / 10")
	}
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "saved.yaml"), []byte(test), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, directory, tool, "test", "rules", "saved.yaml")
}

// asked is the expression of a panel.
func asked(t *testing.T, title string) string {
	t.Helper()
	s := shipped(t)
	queries, err := s.Queries()
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range queries {
		if query.Where == "panel "+title+" A" {
			return s.Fill(query.Text, nil)
		}
	}
	t.Fatalf("the dashboard has no panel %q", title)
	return ""
}

// evaluated has promtool evaluate an expression of the dashboard on series at a time, to the samples in its notation.
func evaluated(t *testing.T, interval string, series map[string]string, expression, at, samples string) {
	t.Helper()
	tool := promtool(t)
	test := "evaluation_interval: 1m\ntests:\n  - interval: " + interval + "\n    input_series:\n"
	for _, name := range slices.Sorted(maps.Keys(series)) {
		test += fmt.Sprintf("      - series: %q\n        values: %q\n", name, series[name])
	}
	test += fmt.Sprintf("    promql_expr_test:\n      - expr: %q\n        eval_time: %s\n        exp_samples: %s\n", expression, at, samples)
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "test.yaml"), []byte(test), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, directory, tool, "test", "rules", "test.yaml")
}

// A cluster sleeps for the first six hours of a day and is awake afterwards; every six hours the plugin's pod is replaced. The
// average of the first pod alone is 1.
func TestTimeAsleep_isThatOfAllReplicasTogether(t *testing.T) {
	t.Parallel()
	series := map[string]string{}
	for pod, values := range map[string]string{"p1": "1x71 stale", "p2": "_x72 0x71 stale", "p3": "_x144 0x71 stale", "p4": "_x216 0x80"} {
		series[`cnpg_scale_to_zero_cluster_state{namespace="shop", cluster="blue", state="asleep", pod="`+pod+`"}`] = values
	}
	evaluated(t, "5m", series, "round(100 * "+asked(t, "Time asleep")+")", "1d", "[{value: 25}]")
}

// One replica of the plugin knows already that a cluster sleeps, and the other does not.
func TestClusterState_isOneWhileReplicasDisagree(t *testing.T) {
	t.Parallel()
	series := map[string]string{}
	for pod, in := range map[string]string{"p1": "awake", "p2": "asleep"} {
		series[`cnpg_scale_to_zero_injections_total{namespace="cnpg-system", pod="`+pod+`"}`] = "0x10"
		for _, state := range []string{"disabled", "awake", "hibernating", "dozing", "asleep", "observed"} {
			value := "0x10"
			if state == in {
				value = "1x10"
			}
			series[`cnpg_scale_to_zero_cluster_state{namespace="shop", cluster="blue", state="`+state+`", pod="`+pod+`"}`] = value
		}
	}
	for panel, samples := range map[string]string{
		"State": `[{labels: '{namespace="shop", cluster="blue"}', value: 5}]`, "Asleep": "[{value: 1}]", "Dozing": "[{value: 0}]", "Awake": "[{value: 0}]",
	} {
		evaluated(t, "1m", series, asked(t, panel), "5m", samples)
	}
}

func TestDashboard_saysWhatItKnows(t *testing.T) {
	t.Parallel()
	const cluster = `namespace="shop", cluster="blue"`
	blocked := func(pod, reason string) string {
		return `cnpg_scale_to_zero_blocked{` + cluster + `, pod="` + pod + `", reason="` + reason + `"}`
	}
	for rule, row := range map[string]struct {
		series          map[string]string
		panel, expected string
	}{
		"nothing while the plugin is down": {nil, "Asleep", "[]"},
		"what a cluster has saved that requests memory only": {map[string]string{
			`cnpg_scale_to_zero_saved_memory_byte_seconds_total{` + cluster + `}`:   fmt.Sprintf("0+%dx1440", 60<<30),
			`cnpg_scale_to_zero_sidecar_cpu_seconds_total{` + cluster + `}`:         "0x1440",
			`cnpg_scale_to_zero_sidecar_memory_byte_seconds_total{` + cluster + `}`: "0x1440",
		}, "Saved money", "[{value: 1}]"},
		"for which part of the time a primary was kept awake, not a short-lived pod or a standby": {map[string]string{
			blocked("blue-1", "active"):      "1x720 0x720",
			blocked("blue-1", "lock_held"):   "0x1440",
			blocked("blue-1", "not_primary"): "0x1440",
			blocked("blue-2", "active"):      "_x600 1x600 stale",
			blocked("blue-2", "not_primary"): "_x600 1x600 stale",
			blocked("blue-3", "active"):      "_x600 0x143 stale",
			blocked("blue-3", "lock_held"):   "_x600 1x143 stale",
			blocked("blue-3", "not_primary"): "_x600 0x143 stale",
		}, "Never asleep, and why", `[{labels: '{namespace="shop", cluster="blue", reason="active"}', value: 5}, {labels: '{namespace="shop", cluster="blue", reason="lock_held"}', value: 1}]`},
		"not since when an instance is idle of which another is unknown": {map[string]string{
			`cnpg_scale_to_zero_idle_since_timestamp_seconds{` + cluster + `, pod="blue-1"}`: "0x1440",
			blocked("blue-2", "unknown"): "1x1440",
		}, "Idle for", "[]"},
		"no newest sample where a doze needs none": {map[string]string{
			`cnpg_scale_to_zero_last_sample_timestamp_seconds{` + cluster + `, pod="blue-1"}`: "0x1440",
			blocked("blue-1", "dozing"): "1x1440",
		}, "Since the newest sample", "[]"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			evaluated(t, "1m", row.series, "round(10 * ("+asked(t, row.panel)+"))", "1d", row.expected)
		})
	}
}
