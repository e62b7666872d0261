package monitoring

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReport_asksWhatItMeans has promtool evaluate what `kubectl scale_to_zero report` asks, on series as CloudNativePG
// exports them of the cluster orders with two instances.
func TestReport_asksWhatItMeans(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(filepath.Join(root, "plugin", "estimate", "testdata", "queries.txt"))
	if err != nil {
		t.Fatal(err)
	}
	queries := strings.Split(strings.TrimSpace(string(body)), "\n")
	backend := func(pod, user, application, database, state string) string {
		const labels = `namespace="shop", pod=%q, k8s_cluster="eu", usename=%q, application_name=%q, datname=%q, state=%q`
		return fmt.Sprintf("cnpg_backends_total{"+labels+"}", pod, user, application, database, state)
	}
	counter := func(name, pod, database string) string {
		return fmt.Sprintf(`cnpg_pg_stat_database_%s{namespace="shop", pod=%q, k8s_cluster="eu", datname=%q}`,
			name, pod, database)
	}
	quiet := map[string]string{
		backend("orders-1", "cnpg_metrics_exporter", "cnpg_metrics_exporter", "postgres", "active"): "1x20",
		backend("orders-2", "cnpg_metrics_exporter", "cnpg_metrics_exporter", "postgres", "active"): "1x20",
		backend("orders-1", "postgres", "cnpg-instance-manager", "postgres", "idle"):                "2x20",
		backend("orders-1", "streaming_replica", "orders-2", "", "active"):                          "1x20",
		backend("orders-1", "cnpg_pooler_pgbouncer", "", "postgres", "idle"):                        "1x20",
		counter("tup_inserted", "orders-1", "app"):                                                  "7x20",
		counter("tup_inserted", "orders-1", ""):                                                     "0+1x20",
		counter("xact_commit", "orders-1", "app"):                                                   "5+60x20",
	}
	const one = `[{labels: '{namespace="shop", cluster="orders"}', value: 1}]`
	user := func(name, application, value string) string {
		const labels = `namespace="shop", cluster="orders", usename="%s", application_name="%s"`
		return fmt.Sprintf("[{labels: '{"+labels+"}', value: %s}]", name, application, value)
	}
	for _, row := range []struct {
		rule, series, values string
		used, users          string
	}{
		{"CloudNativePG's own sessions use nothing", "", "", "[]", "[]"},
		{"a client does", backend("orders-2", "app", "web", "app", "idle"), "_x3 4x10", one, user("app", "web", "6")},
		{"until it is gone", backend("orders-2", "app", "web", "app", "idle"), "_ 4x4 stale", "[]", user("app", "web", "5")},
		{
			"so does one with only the user of CloudNativePG's own",
			backend("orders-1", "postgres", "psql", "postgres", "idle"), "_ 1x10", one, user("postgres", "psql", "8"),
		},
		{
			"and a replica cluster", backend("orders-1", "streaming_replica", "orders-dr-1", "", "active"), "_ 1x10", one,
			user("streaming_replica", "orders-dr-1", "8"),
		},
		{"and rows written between two scrapes", counter("tup_updated", "orders-1", "app"), "3x7 4x3", one, "[]"},
		{"but not rows written before", counter("tup_updated", "orders-1", "app"), "3x6 4x4", "[]", "[]"},
		{"nor a counter that starts anew", counter("tup_deleted", "orders-1", "app"), "3x7 0x3", "[]", "[]"},
		{"many transactions do", counter("xact_commit", "orders-2", "app"), "5+61x20", one, "[]"},
		{
			"another Kubernetes cluster is not asked for",
			strings.Replace(backend("orders-1", "app", "web", "app", "idle"), `"eu"`, `"us"`, 1), "1x10", "[]", "[]",
		},
	} {
		series := map[string]string{row.series: row.values}
		if row.series == "" {
			series = map[string]string{}
		}
		for name, values := range quiet {
			series[name] = values
		}
		for _, query := range queries {
			want := row.used
			switch {
			case strings.HasPrefix(query, "topk"):
				want = row.users
			case !strings.Contains(query, "unless"):
				want = strings.Replace(one, "value: 1", "value: 2", 1)
			}
			t.Run(row.rule, func(t *testing.T) { evaluated(t, "1m", series, query, "8m", want) })
		}
	}
}
