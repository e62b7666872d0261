package command

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const wakeOf = `{"at":"1999-12-31T22:00:00Z","by":"10.0.0.9","user":"app","database":"shop","service":"orders-rw"}`

// fleet has a cluster in every state and with every failure.
func fleet(t *testing.T) *world {
	annotate := func(key, value string) func(*cnpgv1.Cluster) { return with(map[string]string{key: value}) }
	elsewhere := cluster("away")
	elsewhere.Namespace = "team"
	elsewherePod := pod("away", "away-1", time.Hour, true)
	elsewherePod.Namespace = "team"
	unlisted := cluster("unlisted")
	unlisted.Spec.Plugins = nil
	objects := []client.Object{
		elsewhere, elsewherePod, unlisted,
		cluster("orders", annotate(contract.AnnotationLastWake, wakeOf), func(c *cnpgv1.Cluster) { c.Labels = map[string]string{"team": "shop"} }), pod("orders", "orders-1", 2*time.Hour, true),
		cluster("busy"), pod("busy", "busy-1", 50*time.Hour, true),
		cluster("off", annotate(contract.AnnotationEnabled, "false")), pod("off", "off-1", time.Hour, true),
		cluster("bad", annotate(contract.AnnotationActivity, "some")), pod("bad", "bad-1", time.Hour, true),
		cluster("night", asleep, requesting, annotate(contract.AnnotationLastWake, "yesterday")), cluster("free", asleep),
		cluster("maintained", asleep, maintained),
		cluster("dozy", dozing, requesting), withdrawing(pod("dozy", "dozy-1", time.Hour, false)),
		cluster("dozy-off", dozing, annotate(contract.AnnotationEnabled, "false")),
		cluster("dozy-woken", with(toDoze), annotate(contract.AnnotationLastWake, `{"at":"1999-12-31T23:59:58Z","by":"10.0.0.9","service":"x","depth":"doze"}`)),
		withdrawing(pod("dozy-woken", "dozy-woken-1", time.Hour, false)),
		cluster("dozeless", with(toDoze)), pod("dozeless", "dozeless-1", time.Hour, true),
		cluster("fenced", fenced), pod("fenced", "fenced-1", time.Hour, false),
		cluster("hand", byHand, requesting),
		cluster("going", annotate(contract.AnnotationHibernation, "on"), condition("DeletingPods")), pod("going", "going-1", time.Hour, true),
		cluster("announced", annotate(contract.AnnotationAnnounced, "uid "+time.Now().Add(20*time.Second).UTC().Format(time.RFC3339))), pod("announced", "announced-1", time.Hour, true),
		cluster("waking"), pod("waking", "waking-1", 2*time.Second, false),
		cluster("woken", condition("Hibernated")),
		cluster("broken"), pod("broken", "broken-1", time.Hour, false),
		cluster("forbidden", annotate(contract.AnnotationLastWake, `{"at":"1999-12-31T22:00:00Z","by":"10.0.0.9","user":"\u001b[31mroot\n","service":"x"}`)), pod("forbidden", "forbidden-1", time.Hour, true),
		cluster("slow"), pod("slow", "slow-1", time.Hour, true),
		cluster("old"), pod("old", "old-1", time.Hour, true),
		cluster("primaryless", func(c *cnpgv1.Cluster) { c.Status = cnpgv1.ClusterStatus{} }),
	}
	w := newWorld(t, objects...)
	w.reports["orders-1"], w.reports["busy-1"] = idling(12*time.Minute), busy("active", "backup_running")
	w.reports["dozeless-1"], w.reports["fenced-1"] = idling(time.Minute), busy("fenced")
	w.reports["announced-1"], w.reports["away-1"] = idling(29*time.Minute), idling(time.Second)
	w.silence["forbidden-1"] = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "forbidden-1", errors.New("no"))
	w.silence["broken-1"] = apierrors.NewServiceUnavailable("dial tcp 10.0.0.3:9189: connection refused")
	w.hangs["slow-1"] = true
	return w
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for file, row := range map[string]struct {
		arguments []string
		change    func(*world)
	}{
		"status.txt":         {[]string{"status"}, nil},
		"status.json":        {[]string{"status", "-o", "json"}, nil},
		"status.yaml":        {[]string{"status", "-o", "yaml"}, nil},
		"status-wide.txt":    {[]string{"status", "-o", "wide"}, nil},
		"status-path.txt":    {[]string{"status", "-o", `jsonpath={range .clusters[*]}{.cluster} {.state}{"\n"}{end}`}, nil},
		"status-one.txt":     {[]string{"status", "orders"}, nil},
		"status-one-not.txt": {[]string{"status", "nobody"}, nil},
		"status-all.txt":     {[]string{"status", "-A"}, nil},
		"status-any.txt":     {[]string{"status", "--all"}, nil},
		"status-labels.txt":  {[]string{"status", "-l", "team=shop", "-o", "name"}, nil},
		"status-denied.txt":  {[]string{"status"}, func(w *world) { w.denied = true }},
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				w := fleet(t)
				if row.change != nil {
					row.change(w)
				}
				began := time.Now()
				golden(t, file, w.run(t.Context(), row.arguments...))
				if took := time.Since(began); took > askWithin {
					t.Errorf("a sidecar that is silent took %s", took)
				}
			})
		})
	}
	t.Run("an empty namespace is no failure", func(t *testing.T) {
		t.Parallel()
		golden(t, "status-none.txt", newWorld(t).run(t.Context(), "status"))
		golden(t, "status-none-selected.txt", newWorld(t).run(t.Context(), "status", "-l", "team=shop"))
		golden(t, "status-none.json", newWorld(t).run(t.Context(), "status", "-o", "json"))
	})
}

// Only of those that a ScheduledBackup wakes: another cluster of the namespace has the list read.
func TestStatus_saysOfWhichClustersTheBackupsAreUnknown(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, cluster("scheduled", asleep, with(map[string]string{contract.AnnotationWake: contract.WakeOnBackup})),
			cluster("aged", asleep, with(map[string]string{contract.AnnotationBackupMaxAge: "7d"})))
		w.unlisted = true
		golden(t, "status-unscheduled.txt", w.run(t.Context(), "status"))
	})
}

// A cluster that sleeps may have been set not to wake on connection since.
func TestStatus_saysWhyNoConnectionWakesACluster(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*cnpgv1.Cluster)
		says   string
	}{
		{"connections wake what this project put to sleep", asleep, ""},
		{"unless only people may wake it", func(c *cnpgv1.Cluster) { asleep(c); c.Annotations[contract.AnnotationWake] = "manual" }, "connections do not wake it: manual"},
		{"or the feature is off", func(c *cnpgv1.Cluster) { asleep(c); c.Annotations[contract.AnnotationEnabled] = "false" }, "connections do not wake it: disabled"},
		{"or an annotation is invalid", func(c *cnpgv1.Cluster) { asleep(c); c.Annotations[contract.AnnotationActivity] = "some" }, "connections do not wake it: invalid_annotation"},
		{"a maintenance has a note of its own", func(c *cnpgv1.Cluster) { asleep(c); maintained(c) }, "not woken now: a node maintenance"},
		{"the state says that a person put it to sleep", byHand, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				w := newWorld(t, cluster("orders", row.change))
				text := w.run(t.Context(), "status")
				if !strings.Contains(text, "asleep") || !strings.Contains(text, row.says) || strings.Contains(text, "NOTE") != (row.says != "") {
					t.Errorf("it does not say %q:\n%s", row.says, text)
				}
			})
		})
	}
}

// The table is shown, however many sidecars do not answer.
func TestSilenceIsBounded(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.hangs["p"] = true
		a := &access{report: w.report}
		began := time.Now()
		instances := make([]instance, 1000)
		for i := range instances {
			instances[i].pod = "p"
		}
		for _, answered := range a.askAll(t.Context(), instances) {
			if because(answered.err) != "it did not answer in time" {
				t.Fatalf("because %s", because(answered.err))
			}
		}
		if took := time.Since(began); took > askAllWithin {
			t.Errorf("it took %s", took)
		}
	})
}

func TestColours(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := fleet(t)
		answer, err := (&access{client: w.api, namespace: "shop", report: w.report}).table(t.Context(), choice{}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		colours := newStatusText(false, false, true).of(answer.Clusters, time.Now())
		none := newStatusText(false, false, false).of(answer.Clusters, time.Now())
		golden(t, "status-colours.txt", colours)
		if strings.Contains(none, "\x1b") {
			t.Error("there are escapes without colours")
		}
	})
	if colourful(&strings.Builder{}, func(string) string { return "" }) {
		t.Error("what is no terminal has colours")
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	three := cluster("three", with(map[string]string{contract.AnnotationIgnore: "user=monitoring", contract.AnnotationLastWake: wakeOf}))
	three.Status.InstanceNames = []string{"three-2", "three-1", "three-3"}
	for name, row := range map[string]struct {
		cluster string
		change  func(*world)
	}{
		"idle":     {"orders", nil},
		"busy":     {"busy", nil},
		"disabled": {"off", nil},
		"bad":      {"bad", func(w *world) { w.reports["bad-1"] = busy("invalid_annotation", "newer_reason") }},
		"asleep":   {"night", nil},
		"clocked": {"night", func(w *world) {
			w.change("night", with(map[string]string{contract.AnnotationWake: "on-connect, window", contract.AnnotationKeepAwake: "Mon-Fri 08:00-18:00 Europe/Berlin"}))
		}},
		"scheduled": {"night", func(w *world) {
			w.change("night", with(map[string]string{contract.AnnotationWake: "on-connect, backup"}))
			schedule := &cnpgv1.ScheduledBackup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nightly", CreationTimestamp: metav1.NewTime(time.Now())},
				Spec:       cnpgv1.ScheduledBackupSpec{Schedule: "0 30 3 * * *", Cluster: cnpgv1.LocalObjectReference{Name: "night"}},
			}
			if err := w.api.Create(t.Context(), schedule); err != nil {
				t.Fatal(err)
			}
		}},
		"aged": {"night", func(w *world) {
			w.change("night", func(c *cnpgv1.Cluster) {
				c.Annotations[contract.AnnotationBackupMaxAge] = "7d"
				c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{
					Type: string(cnpgv1.ConditionBackup), Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().AddDate(0, 0, -6)),
				})
			})
		}},
		"dozing":     {"dozy", nil},
		"dozing-off": {"dozy-off", nil},
		"dozeless": {"dozeless", func(w *world) {
			report := idling(time.Minute)
			report.DozeBlockers = []string{"standbys", "pod_made_before"}
			w.reports["dozeless-1"] = report
		}},
		"by-hand":     {"hand", nil},
		"maintenance": {"maintained", nil},
		"waking":      {"waking", nil},
		"silent":      {"slow", nil},
		"not-listed":  {"unlisted", nil},
		"hibernating": {"orders", func(w *world) {
			w.change("orders", with(map[string]string{contract.AnnotationHibernation: "on"}))
			w.reports["orders-1"] = busy("already_hibernating")
		}},
		"none":        {"nobody", nil},
		"primaryless": {"primaryless", nil},
		"three":       {"three", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				w := fleet(t)
				if name == "three" {
					if err := w.api.Create(t.Context(), three.DeepCopy()); err != nil {
						t.Fatal(err)
					}
					w.change("three", func(c *cnpgv1.Cluster) { c.Status = three.Status })
					w.reports["three-1"] = idling(31 * time.Minute)
					w.reports["three-1"] = withBlockers(w.reports["three-1"], "sibling_active")
					w.reports["three-2"] = busy("not_primary", "active")
				}
				if row.change != nil {
					row.change(w)
				}
				golden(t, "explain-"+name+".txt", w.run(t.Context(), "explain", row.cluster))
				if name == "three" || name == "asleep" || name == "dozing" || name == "dozeless" {
					golden(t, "explain-"+name+".json", w.run(t.Context(), "explain", row.cluster, "-o", "json"))
				}
			})
		})
	}
}

// What an interrupt leaves of an answer is none.
func TestInterrupt_leavesNoAnswer(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"status", "explain orders", "report"} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, cluster("orders"), pod("orders", "orders-1", time.Hour, true))
			w.hangs["orders-1"] = true
			ctx, interrupt := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, interrupt)
			want := "$ " + called + " " + line + "\n! " + Name + ": interrupted\n= 1\n"
			if text := w.run(ctx, strings.Fields(line)...); text != want {
				t.Error(text)
			}
		})
	}
}

func TestWhatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, line := range []string{
		"slep orders", "status orders red", "status orders -A", "explain", "explain a b", "sleep", "sleep --timeout 0s orders", "wake --timeout -1s orders", "wake --timeout soon orders",
		"keep-awake orders", "keep-awake orders 0", "keep-awake orders 169h", "keep-awake orders tomorrow", "keep-awake orders 8d", "keep-awake orders d", "status --every", "status --all orders", "status -l team=shop orders", "status -l =", "status -w -o name", "status -o xml", "wake -o wide orders", "status -o jsonpath", "status -o jsonpath={",
		"status -A=perhaps", "release", "detach", "detach orders -A", "detach orders red", "detach -l=",
		"doctor a b", "doctor a -A", "doctor --no-archive --redact", "doctor --archive testdata", "doctor --archive=", "report orders",
	} {
		text.WriteString(newWorld(t).run(context.Background(), strings.Fields(line)...))
	}
	golden(t, "usage.txt", text.String())
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := fleet(t)
		golden(t, "complete.txt", w.run(t.Context(), "__complete", "sleep", "")+w.run(t.Context(), "__complete", "wake", "orders", "")+
			w.run(t.Context(), "__complete", "status", "-o", "")+w.run(t.Context(), "__complete", "wake", "-o", "jsonpath"))
	})
	for _, row := range []struct{ command, want string }{
		{"status", "listed"}, {"disable", "listed"}, {"wake", "listed unlisted"}, {"enable", "listed unlisted"},
	} {
		w := newWorld(t, cluster("listed"), cluster("unlisted", unlisted))
		text, _, _ := strings.Cut(w.run(t.Context(), "__complete", row.command, ""), ":")
		if _, names, _ := strings.Cut(text, "\n"); strings.Join(strings.Fields(names), " ") != row.want {
			t.Errorf("%s is completed with %s, want %s", row.command, names, row.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if text := newWorld(t).run(t.Context(), "completion", shell); !strings.Contains(text, Name) || !strings.HasSuffix(text, "= 0\n") {
			t.Errorf("%s has no completion", shell)
		}
	}
}
