package doze

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// stored is the operator's specification, and spec a pod's with these resources of PostgreSQL's container.
const stored = `"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}`

func spec(resources string) string {
	return fmt.Sprintf(`{"containers": [
		{"name": "exporter", "resources": {"requests": {"cpu": "3"}}},
		{"name": "postgres", "image": "x", "resources": {%s}}
	]}`, resources)
}

// entry is an entry of managedFields of PostgreSQL's container.
func entry(manager, operation, fields string) string {
	return fmt.Sprintf(`{"manager": %q, "operation": %q, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:containers": {"k:{\"name\":\"postgres\"}": {".": {}, %s}}}}}`,
		manager, operation, fields)
}

const (
	both   = `"f:resources": {"f:requests": {"f:cpu": {}, "f:memory": {}}}`
	onlyOf = `"f:resources": {"f:requests": {"f:%s": {}}}`
)

var (
	operators     = entry("manager", "Update", `"f:image": {}, `+both)
	oursBoth      = entry("cnpg-i-scale-to-zero", "Update", both)
	oursCPU       = entry("cnpg-i-scale-to-zero", "Update", fmt.Sprintf(onlyOf, "cpu"))
	operatorsBare = entry("manager", "Update", `"f:image": {}, "f:resources": {"f:limits": {"f:cpu": {}}}`)
)

// podOf is a Burstable pod that the operator made from one specification, with these resources and owners.
func podOf(t *testing.T, from, resources string, entries ...string) *kubernetes.Pod {
	t.Helper()
	body := fmt.Sprintf(`{"metadata": {"uid": "pod-uid", "annotations": {"cnpg.io/podSpec": %q}, "managedFields": [%s]}, "spec": %s, "status": {"qosClass": "Burstable"}}`,
		spec(from), strings.Join(entries, ", "), spec(resources))
	var pod kubernetes.Pod
	if err := json.Unmarshal([]byte(body), &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}

const (
	small    = `"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}`
	smallCPU = `"requests": {"cpu": "10m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}`
)

func TestShrink(t *testing.T) {
	t.Parallel()
	change := func(pod *kubernetes.Pod, f func(*kubernetes.Pod)) *kubernetes.Pod { f(pod); return pod }
	for _, row := range []struct {
		rule    string
		pod     *kubernetes.Pod
		memory  string
		want    string
		against string
	}{
		{"the CPU request becomes small", podOf(t, stored, stored, operators), "", "cpu=10m", ""},
		{"and the memory request, to what is set", podOf(t, stored, stored, operators), "64Mi", "cpu=10m memory=64Mi", ""},
		{"which does not raise it", podOf(t, stored, stored, operators), "1Gi", "cpu=10m", ""},
		{"a limit stands for a request", podOf(t, `"limits": {"cpu": "1"}`, `"requests": {"cpu": "1"}, "limits": {"cpu": "1"}`, operators), "64Mi", "cpu=10m", ""},
		{"a small one stays", podOf(t, `"requests": {"cpu": "5m"}`, `"requests": {"cpu": "5m"}`, operators), "", "", ""},
		{"what is not requested stays so", podOf(t, `"requests": {"memory": "1Gi"}`, `"requests": {"memory": "1Gi"}`, operators), "", "", ""},
		{"what the namespace's defaults add stays", podOf(t, `"requests": {"cpu": "1"}`, `"requests": {"cpu": "1", "memory": "1Gi"}`, operators), "64Mi", "cpu=10m", ""},
		{"what we have shrunk is small", podOf(t, stored, small, operatorsBare, oursBoth), "64Mi", "", ""},
		{"what we have grown shrinks again", podOf(t, stored, stored, operatorsBare, oursBoth), "64Mi", "cpu=10m memory=64Mi", ""},
		{"the same amount may be written in another way", podOf(t, `"requests": {"cpu": "0.5"}`, `"requests": {"cpu": "500m"}`, operators), "", "cpu=10m", ""},
		{"a Guaranteed pod would shrink its limits too", change(podOf(t, stored, stored, operators), func(p *kubernetes.Pod) { p.Status.QOSClass = "Guaranteed" }), "", "", notBurstable},
		{"a BestEffort pod requests nothing", change(podOf(t, "", "", operators), func(p *kubernetes.Pod) { p.Status.QOSClass = "BestEffort" }), "", "", notBurstable},
		{"an autoscaler's requests when the pod was made stay", podOf(t, stored, `"requests": {"cpu": "200m", "memory": "512Mi"}`, operators), "", "", setByOthers},
		{"larger ones too", podOf(t, stored, `"requests": {"cpu": "900m", "memory": "512Mi"}`, operatorsBare, oursBoth), "", "", setByOthers},
		{"and those that it has set since", podOf(t, stored, stored, operatorsBare, entry("vpa-updater", "Update", both)), "", "", setByOthers},
		{"also of memory alone", podOf(t, stored, stored, operators, entry("vpa-updater", "Update", fmt.Sprintf(onlyOf, "memory"))), "", "", setByOthers},
		{"and those that it applies", podOf(t, stored, stored, operators, entry("vpa", "Apply", both)), "", "", setByOthers},
		{"another container is not looked at", podOf(t, stored, stored, operators, strings.ReplaceAll(entry("vpa", "Update", both), "postgres", "exporter")), "", "cpu=10m", ""},
		{"without a stored specification nobody would know what to grow to", change(podOf(t, stored, stored, operators), func(p *kubernetes.Pod) { p.Annotations = nil }), "", "", notStored},
		{"nor with one that is invalid", change(podOf(t, stored, stored, operators), func(p *kubernetes.Pod) { p.Annotations["cnpg.io/podSpec"] = "[" }), "", "", notStored},
		{"nor with one without the container", change(podOf(t, stored, stored, operators), func(p *kubernetes.Pod) { p.Annotations["cnpg.io/podSpec"] = "{}" }), "", "", notStored},
		{"a container that a resize restarts stays", change(podOf(t, stored, stored, operators), func(p *kubernetes.Pod) {
			p.Spec.Containers[1].ResizePolicy = []kubernetes.ResizePolicy{{ResourceName: "cpu", RestartPolicy: "RestartContainer"}, {ResourceName: "memory", RestartPolicy: "NotRequired"}}
		}), "64Mi", "memory=64Mi", restarts},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var toMemory resource.Quantity
			if row.memory != "" {
				toMemory = resource.MustParse(row.memory)
			}
			to, against := Shrink(row.pod, toMemory)
			if diff := cmp.Diff(row.want, text(to)); diff != "" || against != row.against {
				t.Errorf("against %q, want %q; requests (-want +got):\n%s", against, row.against, diff)
			}
		})
	}
}

func TestGrow(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		pod  *kubernetes.Pod
		want string
	}{
		{"what we have shrunk grows to what the operator has stored", podOf(t, stored, small, operatorsBare, oursBoth), "cpu=500m memory=512Mi"},
		{"which may be one of them", podOf(t, stored, smallCPU, operators, oursCPU), "cpu=500m"},
		{"or a limit", podOf(t, `"limits": {"cpu": "1"}`, `"requests": {"cpu": "10m"}, "limits": {"cpu": "1"}`, operatorsBare, oursCPU), "cpu=1"},
		{"what is as it was stays", podOf(t, stored, stored, operatorsBare, oursBoth), ""},
		{"what was never shrunk stays", podOf(t, stored, stored, operators), ""},
		{"somebody else's requests stay", podOf(t, stored, small, operatorsBare, entry("vpa-updater", "Update", both)), ""},
		{"also if they were smaller from the start", podOf(t, stored, small, operators), ""},
		{"and larger than what is stored", podOf(t, stored, `"requests": {"cpu": "3", "memory": "3Gi"}`, operatorsBare, oursBoth), ""},
		{"one that somebody else has set since does not keep the other", podOf(t, stored, small, operatorsBare, oursCPU, entry("vpa-updater", "Update", fmt.Sprintf(onlyOf, "memory"))), "cpu=500m"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(row.want, text(Grow(row.pod))); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// text is requests in one line.
func text(requests Requests) string {
	var parts []string
	for _, name := range []string{cpu, memory} {
		if quantity, ok := requests[name]; ok {
			parts = append(parts, name+"="+quantity.String())
		}
	}
	return strings.Join(parts, " ")
}

func TestResizePending(t *testing.T) {
	t.Parallel()
	pending := []kubernetes.Condition{{Type: "PodResizePending", Status: "True", Reason: "Deferred"}}
	for _, row := range []struct {
		rule       string
		owner      string
		conditions []kubernetes.Condition
		want       bool
	}{
		{"a growth of ours that the node has no room for", oursCPU, pending, true},
		{"not somebody else's", operators, pending, false},
		{"not one that is over", oursCPU, []kubernetes.Condition{{Type: "PodResizePending", Status: "False"}}, false},
		{"not one that is being carried out", oursCPU, []kubernetes.Condition{{Type: "PodResizeInProgress", Status: "True"}}, false},
	} {
		pod := podOf(t, stored, stored, operatorsBare, row.owner)
		pod.Status.Conditions = row.conditions
		if got := isResizePending(pod); got != row.want {
			t.Errorf("%s: %t", row.rule, got)
		}
	}
}
