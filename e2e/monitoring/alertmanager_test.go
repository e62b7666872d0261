package monitoring

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/alertmanager"
)

// alertmanagerFile is what users merge into their Alertmanager's configuration.
const alertmanagerFile = root + "/manifests/components/monitoring/alertmanager.yaml"

// TestAlertmanager_holdsBackWhatASleepExplains sends the alerts that promtool expects at a time to a real Alertmanager with the shipped
// configuration, and checks of which it notifies people.
func TestAlertmanager_holdsBackWhatASleepExplains(t *testing.T) {
	t.Parallel()
	program := os.Getenv("ALERTMANAGER")
	if program == "" {
		t.Skip("ALERTMANAGER is not set: it is the path that `go -C e2e run ./cmd/cluster alertmanager` prints")
	}
	for _, row := range []struct {
		rule, test, at string
		fire, told     []string
	}{
		{
			"of an offline cluster that sleeps nobody is told, of one that is awake people are", "a cluster sleeps, and another is awake and dead", "20m",
			[]string{"CNPGClusterOffline blue", "CNPGClusterOffline red", "ScaleToZeroAsleep blue"}, []string{"CNPGClusterOffline red"},
		},
		{
			"nor while it wakes", "a cluster sleeps, and another is awake and dead", "40m",
			[]string{"CNPGClusterOffline blue", "CNPGClusterOffline red", "ScaleToZeroAsleep blue"}, []string{"CNPGClusterOffline red"},
		},
		{
			"nor while it dozes", "a cluster dozes", "35m",
			[]string{"CNPGClusterOffline blue", "CNPGClusterOffline red", "ScaleToZeroAsleep blue"}, []string{"CNPGClusterOffline red"},
		},
		{
			"nor while the plugin is down besides", "a cluster dozes", "60m",
			[]string{"CNPGClusterOffline blue", "CNPGClusterOffline red", "ScaleToZeroAsleep blue"}, []string{"CNPGClusterOffline red"},
		},
		{
			"one that does not come back is told of", "a cluster that does not come back is not held back for long", "17m",
			[]string{"CNPGClusterOffline blue"}, []string{"CNPGClusterOffline blue"},
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			firing := firingAt(t, row.test, row.at)
			if got := namesOf(firing); !slices.Equal(got, row.fire) {
				t.Fatalf("%v fire, want %v", got, row.fire)
			}
			tells(t, program, firing, row.told)
		})
	}
}

// Where k8s_cluster is a label of the series, the expression of CloudNativePG's alert loses it.
func TestAlertmanager_holdsBackWhatHasLostItsCluster(t *testing.T) {
	t.Parallel()
	program := os.Getenv("ALERTMANAGER")
	if program == "" {
		t.Skip("ALERTMANAGER is not set: it is the path that `go -C e2e run ./cmd/cluster alertmanager` prints")
	}
	firing := firingAt(t, "a cluster sleeps, and another is awake and dead", "20m")
	for _, labels := range firing {
		if labels["alertname"] == "ScaleToZeroAsleep" {
			labels["k8s_cluster"] = "eu"
		}
	}
	tells(t, program, firing, []string{"CNPGClusterOffline red"})
}

// firingAt are the labels of the alerts that a test for promtool expects at a time.
func firingAt(t *testing.T, name, at string) []map[string]string {
	t.Helper()
	body, err := os.ReadFile("testdata/inhibited.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Name   string `json:"name"`
			Alerts []struct {
				At       string `json:"eval_time"`
				Name     string `json:"alertname"`
				Expected []struct {
					Labels map[string]string `json:"exp_labels"`
				} `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(body, &file); err != nil {
		t.Fatal(err)
	}
	var firing []map[string]string
	for _, test := range file.Tests {
		for _, alert := range test.Alerts {
			for _, expected := range alert.Expected {
				if test.Name == name && alert.At == at {
					expected.Labels["alertname"] = alert.Name
					firing = append(firing, expected.Labels)
				}
			}
		}
	}
	return firing
}

func namesOf(alerts []map[string]string) []string {
	var names []string
	for _, labels := range alerts {
		names = append(names, labels["alertname"]+" "+labels["cnpg_cluster"])
	}
	slices.Sort(names)
	return names
}

// tells demands that a real Alertmanager that is given alerts soon tells people of those alone, by name.
func tells(t *testing.T, program string, firing []map[string]string, want []string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	a, err := alertmanager.Start(ctx, program, alertmanagerFile, t.TempDir())
	if err != nil {
		stop()
		t.Fatal(err)
	}
	defer a.Wait()
	defer stop()
	if err := a.Send(ctx, firing); err != nil {
		t.Fatal(err)
	}
	told := func(states []alertmanager.State) []string {
		var labels []map[string]string
		for _, state := range states {
			if state.Told() {
				labels = append(labels, state.Labels)
			}
		}
		return namesOf(labels)
	}
	states, err := a.Await(ctx, 30*time.Second, func(states []alertmanager.State) bool {
		return len(states) == len(firing) && slices.Equal(told(states), want)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := told(states); len(states) != len(firing) || !slices.Equal(got, want) {
		t.Errorf("Alertmanager has %d alerts and notifies people of %v, want %v", len(states), got, want)
	}
}
