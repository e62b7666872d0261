package cnpgi

import (
	"encoding/json"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestChanges(t *testing.T) {
	t.Parallel()
	same := func(*corev1.Pod) {}
	everything := func(p *corev1.Pod) {
		setStartupProbePeriod(p)
		setSidecarStartupProbePeriods(p)
		addPreStopHook(p)
		prepareSidecar(p, "")
		shrinkBootstrapRequests(p, nil)
	}
	stays := corev1.Container{
		Name: "plugin", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), StartupProbe: startupProbe(5, 0, 10),
	}
	for _, row := range []struct {
		rule         string
		from, change func(*corev1.Pod)
	}{
		{"the sidecar and its volumes come last", same, same},
		{"probes and the hook are changed", same, everything},
		{"a hook joins another", func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
		}, everything},
		{"a hook that is there stays", func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
		}, everything},
		{"another plugin's sidecar is probed anew", func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, stays) }, everything},
		{"a container without a startup probe gets none", func(p *corev1.Pod) { p.Spec.Containers[0].StartupProbe = nil }, everything},
		{"requests are made smaller", func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}, everything},
		{"limits alone get a request", func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		}, everything},
		{"a sidecar that is planned is replaced where it is", func(p *corev1.Pod) {
			planned, err := injectSidecar(p, placeholder())
			if err != nil {
				t.Error(err)
			}
			*p = *planned
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"})
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "other"})
		}, everything},
		{"a pod may have no volumes yet", func(p *corev1.Pod) { p.Spec.Volumes = nil }, same},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			from := instance(t)
			row.from(from)
			to, err := injectSidecar(from, configured())
			if err != nil {
				t.Fatal(err)
			}
			row.change(to)
			body, err := json.Marshal(from)
			if err != nil {
				t.Fatal(err)
			}
			operations, err := json.Marshal(changes(from, to))
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(operations)
			if err != nil {
				t.Fatal(err)
			}
			if body, err = patch.Apply(body); err != nil {
				t.Fatal(err)
			}
			var got corev1.Pod
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(to, &got) {
				t.Errorf("pod (-want +got):\n%s", cmp.Diff(to, &got))
			}
		})
	}
}

func TestChanges_leaveTheHooksOfOtherContainers(t *testing.T) {
	t.Parallel()
	from := instance(t)
	from.Spec.InitContainers = append(from.Spec.InitContainers, corev1.Container{Name: "plugin", Lifecycle: &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}},
	}})
	to, err := injectSidecar(from, configured())
	if err != nil {
		t.Fatal(err)
	}
	for _, operation := range changes(from, to) {
		if strings.Contains(operation.Path, "lifecycle") {
			t.Errorf("%s %s", operation.Op, operation.Path)
		}
	}
}

// A newer operator may set fields that this plugin does not know.
func TestChanges_leaveWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(instance(t))
	if err != nil {
		t.Fatal(err)
	}
	with := func(path string) []byte {
		patch, err := jsonpatch.DecodePatch([]byte(`[{"op":"add","path":"` + path + `","value":"new"}]`))
		if err != nil {
			t.Fatal(err)
		}
		changed, err := patch.Apply(body)
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	for _, path := range []string{"/spec/newField", "/spec/containers/0/newField", "/spec/containers/0/startupProbe/newField", "/spec/volumes/0/newField"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			definition := with(path)
			answer, _ := hook(t, definition, create)
			operations, err := jsonpatch.DecodePatch([]byte(`[{"op":"test","path":"` + path + `","value":"new"}]`))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := operations.Apply(patched(t, definition, answer)); err != nil {
				t.Error(err)
			}
		})
	}
}
