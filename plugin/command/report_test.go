package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"golang.org/x/net/html"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// usedOf says at which minutes of the test's day a cluster was used.
var usedOf = map[string]func(minute int) bool{
	"shop/office":  func(m int) bool { return m >= 8*60 && m < 18*60 },
	"shop/nightly": func(m int) bool { return m == 3*60 },
	"shop/pooled":  func(int) bool { return true },
	"shop/hidden":  func(m int) bool { return m%20 == 0 },
	"team/office":  func(int) bool { return false },
}

// prometheusOf answers the queries of the report as Prometheus does. The adapter's own tests cover what it is asked.
func prometheusOf(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, kind, results := r.FormValue("query"), "matrix", []string{}
		for cluster, used := range usedOf {
			namespace, name, _ := strings.Cut(cluster, "/")
			if !regexp.MustCompile(`pod=~"\(([^)]*\|)?` + name + `[|)]`).MatchString(query) {
				continue
			}
			labels := fmt.Sprintf(`"namespace":%q,"cluster":%q`, namespace, name)
			if strings.HasPrefix(query, "topk") {
				kind = "vector"
				if name == "pooled" {
					results = append(results, fmt.Sprintf(`{"metric":{%s,"usename":"app","application_name":"HikariCP <3>"},"value":[0,"9"]}`, labels),
						fmt.Sprintf(`{"metric":{%s,"usename":"bi","application_name":""},"value":[0,"5"]}`, labels))
				}
				continue
			}
			var values []string
			var from, to int64
			_, _ = fmt.Sscanf(r.FormValue("start")+" "+r.FormValue("end"), "%d %d", &from, &to)
			for at := from; at <= to; at += 60 {
				if m := int(at / 60 % (24 * 60)); !strings.Contains(query, "unless") || used(m) {
					values = append(values, fmt.Sprintf(`[%d,"3"]`, at))
				}
			}
			results = append(results, fmt.Sprintf(`{"metric":{%s},"values":[%s]}`, labels, strings.Join(values, ",")))
		}
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":%q,"result":[%s]}}`, kind, strings.Join(results, ","))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func office(c *cnpgv1.Cluster) {
	requesting(c)
	c.Spec.Plugins, c.Labels = nil, map[string]string{"team": "shop"}
}

func mirrors(c *cnpgv1.Cluster) {
	requesting(c)
	c.Spec.ReplicaCluster = &cnpgv1.ReplicaClusterConfiguration{Primary: "office", Source: "office"}
}

func TestReport(t *testing.T) {
	t.Parallel()
	elsewhere := cluster("office", requesting)
	elsewhere.Namespace = "team"
	objects := func() []client.Object {
		return []client.Object{cluster("office", office), cluster("nightly"), cluster("pooled", requesting), cluster("hidden"), cluster("unscraped"), cluster("mirror", mirrors), elsewhere.DeepCopy()}
	}
	for file, arguments := range map[string]string{
		"report.txt":          "--prometheus URL --since 7d",
		"report-all.txt":      "--prometheus URL --since 7d -A",
		"report-selector.txt": "--prometheus URL --since 7d -l team=shop",
		"report-none.txt":     "--prometheus URL --since 7d -l team=none",
		"report.json":         "--prometheus URL --since 7d -l team=shop -o json",
		"report.yaml":         "--prometheus URL --since 7d -l team=shop -o yaml",
		"report-usage.txt":    "--prometheus prometheus:9090",
		"report-since.txt":    "--prometheus URL --since 2w",
		"report-empty.txt":    "--prometheus URL -l=",
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				url := prometheusOf(t)
				text := newWorld(t, objects()...).run(t.Context(),
					append([]string{"report"}, strings.Fields(strings.ReplaceAll(arguments, "URL", url))...)...)
				golden(t, file, strings.ReplaceAll(text, url, "URL"))
			})
		})
	}
}

// The page loads nothing, and what a client calls itself is no markup.
func TestReport_isOnePage(t *testing.T) {
	t.Parallel()
	text := ""
	bubble(t, func(t *testing.T) {
		w := newWorld(t, cluster("office", office), cluster("pooled", requesting), cluster("unscraped"))
		text = w.run(t.Context(), "report", "--prometheus", prometheusOf(t), "-o", "html")
	})
	_, text, _ = strings.Cut(text, "\n")
	if !strings.HasPrefix(text, "<!DOCTYPE html>") || !strings.HasSuffix(text, "</html>\n= 0\n") {
		t.Errorf("it is no page:\n%s", text)
	}
	tree, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var bars []string
	for node := range tree.Descendants() {
		for _, attribute := range node.Attr {
			switch {
			case attribute.Key == "src", attribute.Key == "href", node.Data == "script":
				t.Errorf("<%s %s=%q> loads or runs something", node.Data, attribute.Key, attribute.Val)
			case attribute.Key == "aria-label":
				bars = append(bars, attribute.Val)
			}
		}
	}
	if want := "asleep for 56% of the time asleep for 0% of the time"; strings.Join(bars, " ") != want {
		t.Errorf("the bars are %q, want %q", bars, want)
	}
	for _, part := range []string{"HikariCP &lt;3&gt;", "shop/unscraped", "an estimate"} {
		if !strings.Contains(text, part) {
			t.Errorf("it lacks %q:\n%s", part, text)
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	for part, want := range map[float64]string{0: "0%", 0.001: "<1%", 0.5: "50%", 0.999: ">99%", 1: "100%"} {
		if got := share(part); got != want {
			t.Errorf("%g is %s, want %s", part, got, want)
		}
	}
}

// observing is the report of the sidecar of a cluster that has been observed for ten hours, and would be asleep.
func observing() contract.Report {
	r := withBlockers(idling(40*time.Minute), "observed")
	since := time.Now().Add(-10 * time.Minute).UTC()
	r.WhatIf = &contract.ReportedWhatIf{
		ObservedSeconds: 36000, AwakeSeconds: map[string]float64{"active": 7200, "waiting": 3600, "observed": 21600, "backup_running": 3600},
		Own: contract.ReportedSleeps{ThresholdSeconds: 1800, Count: 3, Seconds: 21600, Since: &since},
	}
	for minutes, seconds := range map[int]float64{5: 25200, 15: 23400, 30: 21600, 60: 10800, 120: 3600, 240: 0, 480: 0, 1440: 0} {
		sleeps := contract.ReportedSleeps{ThresholdSeconds: float64(60 * minutes), Seconds: seconds}
		if seconds > 0 {
			sleeps.Count = 3
		}
		r.WhatIf.Sleeps = append(r.WhatIf.Sleeps, sleeps)
	}
	slices.SortFunc(r.WhatIf.Sleeps,
		func(a, b contract.ReportedSleeps) int { return cmp.Compare(a.ThresholdSeconds, b.ThresholdSeconds) })
	return r
}

// What clusters that sleep for real have counted is told by their sidecars, and by the Cluster while it hibernates.
func TestReport_tellsWhatOtherThresholdsWouldBring(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		counts := idle.WhatIf{
			Observed: 46 * time.Hour, Awake: map[idle.Reason]time.Duration{idle.ReasonActive: 46 * time.Hour},
			At: make([]idle.Sleeps, len(idle.Thresholds())), Threshold: 30 * time.Minute,
			Decided: time.Now().Add(-2 * time.Hour), IdleSince: time.Now().Add(-150 * time.Minute),
			Hibernated: cluster("bills", asleep).Annotations[contract.AnnotationAsleepSince],
		}
		text, err := json.Marshal(counts)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, cluster("orders", requesting), pod("orders", "orders-1", time.Hour, true),
			cluster("bills", asleep, requesting, with(map[string]string{contract.AnnotationCounts: string(text)})),
			cluster("carts", byHand, with(map[string]string{contract.AnnotationCounts: string(text)})),
			cluster("odd", asleep, with(map[string]string{contract.AnnotationCounts: `{"at":[{},{},{},{},{},{},{},{}]}`})))
		r := observing()
		r.WhatIf.WakeSeconds = 14.2
		w.reports["orders-1"] = r
		golden(t, "counted-report.txt", w.run(t.Context(), "report"))
		golden(t, "counted-report.html", w.run(t.Context(), "report", "-o", "html"))
	})
}

// What anybody may have written, and what is of an earlier hibernation, is as if there were nothing.
func TestReport_ignoresCountsThatAreNotOfThisHibernation(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		since := cluster("bills", asleep).Annotations[contract.AnnotationAsleepSince]
		at := `"at":[{},{},{},{},{},{},{},{}]`
		ours := fmt.Sprintf(`{%s,"observed":3600000000000,"decided":%q,"hibernated":%q}`, at, since, since)
		for _, row := range []struct {
			rule, text string
			change     func(*cnpgv1.Cluster)
			counted    bool
		}{
			{"those of this hibernation are counted", ours, func(*cnpgv1.Cluster) {}, true},
			{"those of an earlier one are not", strings.ReplaceAll(ours, `"hibernated":"1999`, `"hibernated":"1998`), func(*cnpgv1.Cluster) {}, false},
			{"nor are those before a hibernation by hand", ours, byHand, false},
			{"nor is what a person has written", ours, func(c *cnpgv1.Cluster) {
				fields := c.ManagedFields[0].FieldsV1
				fields.SetRawBytes(bytes.ReplaceAll(fields.GetRawBytes(), []byte("counts"), []byte("defaults")))
			}, false},
			{"nor is no time", strings.Replace(ours, "3600000000000", "0", 1), func(*cnpgv1.Cluster) {}, false},
			{"nor is a negative one", strings.Replace(ours, "3600000000000", "-1", 1), func(*cnpgv1.Cluster) {}, false},
			{"nor is what has no decision", "{" + at + "}", func(*cnpgv1.Cluster) {}, false},
			{"nor is what is no JSON", "{" + at, func(*cnpgv1.Cluster) {}, false},
		} {
			c := cluster("bills", asleep, with(map[string]string{contract.AnnotationCounts: row.text}), row.change)
			if got := keptCounts(c, time.Now()); (got != nil) != row.counted {
				t.Errorf("%s: %+v", row.rule, got)
			}
		}
	})
}

func TestObserved(t *testing.T) {
	t.Parallel()
	for file, arguments := range map[string]string{
		"observed-status.txt":   "status",
		"observed-status.json":  "status -o json",
		"observed-explain.txt":  "explain orders",
		"observed-report.txt":   "report",
		"observed-report.json":  "report -l team=shop -o json",
		"observed-sleep.txt":    "sleep orders",
		"observed-awake.txt":    "keep-awake orders 2h",
		"observed-since.txt":    "report --since 7d",
		"observed-headers.txt":  "report --prometheus-header X-Scope-OrgID=team",
		"observed-nothing.html": "report -l team=none -o html",
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				observe := with(map[string]string{contract.AnnotationEnabled: contract.EnabledObserve})
				listed := func(c *cnpgv1.Cluster) { c.Labels = map[string]string{"team": "shop"} }
				w := newWorld(t, cluster("orders", observe, requesting, listed), pod("orders", "orders-1", time.Hour, true),
					cluster("carts"), pod("carts", "carts-1", time.Hour, true), cluster("gone", office))
				w.reports["orders-1"], w.reports["carts-1"] = observing(), busy("active")
				golden(t, file, w.run(t.Context(), strings.Fields(arguments)...))
			})
		})
	}
}
