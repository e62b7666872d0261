package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// healthy is a healthy Cluster as the operator leaves it, with placeholders where tests add fields.
const healthy = `{
  "apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster",
  "metadata": {"name": "blue", "namespace": "team", "uid": "0f0e", "resourceVersion": "7",
    "annotations": {"xata.io/scale-to-zero-enabled": "true"%annotations%}},
  "spec": {"instances": 2, "plugins": [{"name": "barman-cloud.cloudnative-pg.io"}, %plugin%],
    "bootstrap": {"initdb": {"database": "app", "owner": "app"}}%spec%},
  "status": {"phase": "Cluster in healthy state", "currentPrimary": "blue-1", "targetPrimary": "blue-1",
    "instanceNames": ["blue-1", "blue-2"], "instancesStatus": {"healthy": ["blue-1"], "replicating": ["blue-2"]},
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "ContinuousArchiving", "status": "True"}]%status%}}`

const listed = `{"name": "cnpg-i-scale-to-zero.xata.io"}`

// clusterWith fills the placeholders; the last of equal JSON keys wins, so that an addition may replace a field.
func clusterWith(additions ...string) string {
	filled := map[string]string{"plugin": listed}
	for i := 0; i+1 < len(additions); i += 2 {
		filled[additions[i]] = additions[i+1]
	}
	text := healthy
	for _, marker := range []string{"annotations", "plugin", "spec", "status"} {
		text = strings.Replace(text, "%"+marker+"%", filled[marker], 1)
	}
	return text
}

// decodeCluster decodes a Cluster as the client does.
func decodeCluster(body []byte) (View, error) {
	var cluster Cluster
	decoder := serializer.NewCodecFactory(newScheme(blue.groupVersion())).WithoutConversion().SupportedMediaTypes()[0].Serializer
	if _, _, err := decoder.Decode(body, nil, &cluster); err != nil {
		return View{}, err
	}
	return viewOf(&cluster), nil
}

func TestView_ofAHealthyCluster(t *testing.T) {
	t.Parallel()
	got, err := decodeCluster([]byte(clusterWith()))
	if err != nil {
		t.Fatal(err)
	}
	want := View{
		UID: "0f0e", Name: "blue", ResourceVersion: "7", Annotations: map[string]string{contract.AnnotationEnabled: "true"},
		CurrentPrimary: "blue-1", TargetPrimary: "blue-1", Healthy: true, Instances: []string{"blue-1", "blue-2"}, Ready: []string{"blue-1"},
		ApplicationDatabase: "app", PluginListed: true, Operator: "  ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestView_changesWithWhatTheOperatorMakesInstancesOf(t *testing.T) {
	t.Parallel()
	const status = `, "image": "postgresql:17.5", "cloudNativePGCommitHash": "a1", "cloudNativePGOperatorHash": "h1", "pluginStatus": [{"name": "backup", "version": "1", "capabilities": ["x"]}, {"name": "` + contract.PluginName + `", "version": "v8"}]`
	for _, row := range []struct {
		rule, before, after string
		want                bool
	}{
		{"another operator", "a1", "a2", true},
		{"another image of the catalog", "17.5", "17.6", true},
		{"another request to restart", "12:00", "12:01", true},
		{"another version of a plugin", `"version": "1"`, `"version": "2"`, true},
		{"not of this one, which replaces no instance", "v8", "v9", false},
		{"not the same on a node of another architecture, whose program has another hash", "h1", "h2", false},
		{"not what a plugin can do", `"capabilities": ["x"]`, `"capabilities": []`, false},
	} {
		const restart = `, "kubectl.kubernetes.io/restartedAt": "2026-01-01T12:00:00Z"`
		was, err := decodeCluster([]byte(clusterWith("annotations", restart, "status", status)))
		if err != nil {
			t.Fatal(err)
		}
		change := strings.NewReplacer(row.before, row.after).Replace
		is, err := decodeCluster([]byte(clusterWith("annotations", change(restart), "status", change(status))))
		if err != nil || (was.Operator != is.Operator) != row.want {
			t.Errorf("%s: %q became %q, error %v", row.rule, was.Operator, is.Operator, err)
		}
	}
}

func TestView_stopsHastily(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]bool{
		"": false, `, "switchoverDelay": 0`: false, `, "switchoverDelay": 1`: true, `, "switchoverDelay": 59`: true,
		`, "switchoverDelay": 60`: false, `, "switchoverDelay": 3600`: false,
	} {
		if view, err := decodeCluster([]byte(clusterWith("spec", spec))); err != nil || view.ShortSwitchoverDelay != want {
			t.Errorf("%q: %t, error %v", spec, view.ShortSwitchoverDelay, err)
		}
	}
}

func TestView_blockers(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		additions []string
		want      []idle.Reason
	}{
		{"a healthy cluster does not forbid sleep", nil, nil},
		{"a plugin that the Cluster disabled is not listed", []string{"plugin", `{"name": "cnpg-i-scale-to-zero.xata.io", "enabled": false}`}, []idle.Reason{idle.ReasonPluginNotListed}},
		{"a plugin that the Cluster enabled is listed", []string{"plugin", `{"name": "cnpg-i-scale-to-zero.xata.io", "enabled": true}`}, nil},
		{"another plugin is not ours", []string{"plugin", `{"name": "other"}`}, []idle.Reason{idle.ReasonPluginNotListed}},
		{"hibernation is on", []string{"annotations", `, "cnpg.io/hibernation": "on"`}, []idle.Reason{idle.ReasonAlreadyHibernating}},
		{"hibernation that is off forbids nothing", []string{"annotations", `, "cnpg.io/hibernation": "off"`}, nil},
		{"another instance is the primary", []string{"status", `, "currentPrimary": "blue-2", "targetPrimary": "blue-2"`}, []idle.Reason{idle.ReasonNotPrimary}},
		{"no instance is known to be the primary", []string{"status", `, "currentPrimary": "", "targetPrimary": ""`}, []idle.Reason{idle.ReasonNotPrimary}},
		{"another instance is becoming the primary", []string{"status", `, "targetPrimary": "blue-2"`}, []idle.Reason{idle.ReasonSwitchover}},
		{"a failover has no target yet", []string{"status", `, "targetPrimary": "pending"`}, []idle.Reason{idle.ReasonSwitchover}},
		{"this instance is becoming the primary", []string{"status", `, "currentPrimary": "blue-2"`}, []idle.Reason{idle.ReasonNotPrimary}},
		{"every phase but one is unhealthy", []string{"status", `, "phase": "Waiting for the instances to become active"`}, []idle.Reason{idle.ReasonUnhealthy}},
		{"the operator is told to keep off", []string{"annotations", `, "cnpg.io/reconciliationLoop": "disabled"`}, []idle.Reason{idle.ReasonReconciliationDisabled}},
		{"any fenced instance forbids sleep", []string{"annotations", `, "cnpg.io/fencedInstances": "[\"blue-2\"]"`}, []idle.Reason{idle.ReasonFenced}},
		{"all instances are fenced", []string{"annotations", `, "cnpg.io/fencedInstances": "[\"*\"]"`}, []idle.Reason{idle.ReasonFenced}},
		{"an empty list fences none", []string{"annotations", `, "cnpg.io/fencedInstances": "[]"`}, nil},
		{"a list that is not understood forbids sleep", []string{"annotations", `, "cnpg.io/fencedInstances": "blue-2"`}, []idle.Reason{idle.ReasonFenced}},
		{"a maintenance window is in progress", []string{"spec", `, "nodeMaintenanceWindow": {"inProgress": true}`}, []idle.Reason{idle.ReasonMaintenance}},
		{"a maintenance window is in progress, and volumes are deleted in it", []string{"spec", `, "nodeMaintenanceWindow": {"inProgress": true, "reusePVC": false}`}, []idle.Reason{idle.ReasonMaintenance}},
		{"a maintenance window is planned", []string{"spec", `, "nodeMaintenanceWindow": {"reusePVC": true}`}, nil},
		{"a replica cluster by spec.replica.enabled", []string{"spec", `, "replica": {"enabled": true, "source": "red"}`}, []idle.Reason{idle.ReasonReplicaCluster}},
		{"spec.replica.enabled wins over the topology", []string{"spec", `, "replica": {"enabled": false, "primary": "red", "source": "red"}`}, nil},
		{"a replica cluster by the topology", []string{"spec", `, "replica": {"primary": "red", "source": "red"}`}, []idle.Reason{idle.ReasonReplicaCluster}},
		{"the primary of the topology, by the Cluster's name", []string{"spec", `, "replica": {"primary": "blue", "source": "red"}`}, nil},
		{"the primary of the topology, by the name it has there", []string{"spec", `, "replica": {"self": "eu", "primary": "eu", "source": "us"}`}, nil},
		{"not the primary under the name it has there", []string{"spec", `, "replica": {"self": "eu", "primary": "blue", "source": "us"}`}, []idle.Reason{idle.ReasonReplicaCluster}},
		{"archiving fails", []string{"status", `, "conditions": [{"type": "ContinuousArchiving", "status": "False"}]`}, []idle.Reason{idle.ReasonArchivingFailing}},
		{"whether archiving fails is not known yet", []string{"status", `, "conditions": [{"type": "ContinuousArchiving", "status": "Unknown"}]`}, nil},
		{"all reasons are named, in their order", []string{
			"annotations", `, "cnpg.io/hibernation": "on", "cnpg.io/reconciliationLoop": "disabled"`, "plugin", `{"name": "other"}`, "status", `, "phase": ""`,
		}, []idle.Reason{idle.ReasonPluginNotListed, idle.ReasonAlreadyHibernating, idle.ReasonUnhealthy, idle.ReasonReconciliationDisabled}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			view, err := decodeCluster([]byte(clusterWith(row.additions...)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, view.Blockers("blue-1")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestView_knowsARestartInPlace(t *testing.T) {
	t.Parallel()
	for phase, want := range map[string]bool{
		cnpgv1.PhaseInplacePrimaryRestart: true, cnpgv1.PhaseInplaceDeletePrimaryRestart: false, cnpgv1.PhaseWaitingForInstancesToBeActive: false, cnpgv1.PhaseHealthy: false,
	} {
		view, err := decodeCluster([]byte(clusterWith("status", `, "phase": "`+phase+`"`)))
		if err != nil || view.Restarting != want || view.Healthy != (phase == cnpgv1.PhaseHealthy) {
			t.Errorf("%s: restarting %t, healthy %t, error %v", phase, view.Restarting, view.Healthy, err)
		}
	}
}

func TestView_applicationDatabaseIsTheOperators(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, bootstrap, want string }{
		{"a new cluster", `{"initdb": {"database": "shop"}}`, "shop"},
		{"a recovered cluster", `{"recovery": {"database": "shop"}}`, "shop"},
		{"a copied cluster", `{"pg_basebackup": {"database": "shop"}}`, "shop"},
		{"a recovered cluster that names none has none", `{"recovery": {"source": "red"}}`, ""},
		{"an import of a whole server has none", `{"initdb": {"import": {"type": "monolith"}}}`, ""},
		{"a Cluster without bootstrap has none", `{}`, ""},
		{"recovery goes first, as in the operator", `{"initdb": {"database": "a"}, "pg_basebackup": {"database": "b"}, "recovery": {"database": "c"}}`, "c"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			view, err := decodeCluster([]byte(`{"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "spec": {"bootstrap": ` + row.bootstrap + `}}`))
			if err != nil {
				t.Fatal(err)
			}
			if view.ApplicationDatabase != row.want {
				t.Errorf("database %q", view.ApplicationDatabase)
			}
		})
	}
}

// FuzzDecodeCluster checks that no input makes the decoder panic, and that what cannot be decoded forbids sleep.
func FuzzDecodeCluster(f *testing.F) {
	for _, seed := range []string{clusterWith(), `{}`, `null`, `{"spec": {"replica": {}}}`, `{"status": {"conditions": [{}]}}`, `[`, `{"metadata": {"managedFields": [{"fieldsV1": []}]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		view, err := decodeCluster(body)
		if err != nil && view.Name != "" {
			t.Error("an error came with a view")
		}
		blockers := view.Blockers("blue-1")
		if len(blockers) == 0 && (!view.Healthy || !view.PluginListed || view.CurrentPrimary != "blue-1") {
			t.Errorf("nothing forbids sleep of %+v", view)
		}
	})
}

func TestView_whoseTheSwitchIs(t *testing.T) {
	t.Parallel()
	const on = `, "cnpg.io/hibernation": "on"}, "managedFields": [%s], "x": {"y": "z"`
	entry := func(manager, operation, annotation string) string {
		return `{"manager": "` + manager + `", "operation": "` + operation + `", "fieldsV1": {"f:metadata": {"f:annotations": {"f:` + annotation + `": {}}}}}`
	}
	ours := entry(contract.FieldManager, "Update", contract.AnnotationHibernation)
	for _, row := range []struct {
		rule   string
		fields []string
		want   bool
	}{
		{"what we set is ours", []string{ours}, true},
		{"what a person set is not", []string{entry("kubectl-annotate", "Update", contract.AnnotationHibernation)}, false},
		{"what somebody applies beside us is not ours alone", []string{ours, entry("argocd-controller", "Apply", contract.AnnotationHibernation)}, false},
		{"in whatever order", []string{entry("argocd-controller", "Apply", contract.AnnotationHibernation), ours}, false},
		{"who applies something else takes nothing away", []string{ours, entry("argocd-controller", "Apply", contract.AnnotationEnabled)}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got, err := decodeCluster([]byte(clusterWith("annotations", strings.Replace(on, "%s", strings.Join(row.fields, ","), 1))))
			if err != nil {
				t.Fatal(err)
			}
			if !got.Hibernating || got.Ours != row.want {
				t.Errorf("hibernating %t, ours %t, want %t", got.Hibernating, got.Ours, row.want)
			}
		})
	}
}

func TestView_whoseKeepAwakeItIs(t *testing.T) {
	t.Parallel()
	const until = `, "xata.io/scale-to-zero-keep-awake-until": "2026-03-01T12:00:00Z"}, "managedFields": [{"manager": %q, "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {"f:xata.io/scale-to-zero-keep-awake-until": {}}}}}], "x": {"y": "z"`
	for manager, want := range map[string]bool{contract.FieldManager: true, "kubectl-annotate": false, extendingManager: false} {
		got, err := decodeCluster([]byte(clusterWith("annotations", fmt.Sprintf(until, manager))))
		if err != nil {
			t.Fatal(err)
		}
		if got.KeepAwakeOurs != want {
			t.Errorf("set by %s: ours %t, want %t", manager, got.KeepAwakeOurs, want)
		}
	}
}

func TestView_marksOfADozeThatAreNotOurs(t *testing.T) {
	t.Parallel()
	const marks = `, "xata.io/scale-to-zero-dozing-since": "2026-03-01T12:00:00Z", "xata.io/scale-to-zero-postgres-stopped": "u"}, "managedFields": [{"manager": %q, "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {"f:xata.io/scale-to-zero-dozing-since": {}}}}}], "x": {"y": "z"`
	for _, row := range []struct {
		rule, annotations string
		foreign           bool
	}{
		{"one that is ours suffices", fmt.Sprintf(marks, contract.FieldManager), false},
		{"what a person has applied is theirs", fmt.Sprintf(marks, "kubectl-client-side-apply"), true},
		{"no marks", "", false},
	} {
		got, err := decodeCluster([]byte(clusterWith("annotations", row.annotations)))
		if err != nil {
			t.Fatal(err)
		}
		if got.ForeignMarks != row.foreign {
			t.Errorf("%s: foreign %t", row.rule, got.ForeignMarks)
		}
	}
}
