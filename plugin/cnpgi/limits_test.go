package cnpgi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
)

// quantities are of CPU and memory; empty: none.
func quantities(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, value := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if value != "" {
			list[name] = resource.MustParse(value)
		}
	}
	return list
}

// shippedDefaults is a sidecar with the resources of the default settings.
func shippedDefaults() Sidecar {
	sidecar, most := configured(), quantities("100m", "64Mi")
	sidecar.Resources = Sidecars{
		Burstable:  corev1.ResourceRequirements{Requests: quantities("10m", "32Mi"), Limits: most},
		Guaranteed: corev1.ResourceRequirements{Requests: most, Limits: most},
	}
	return sidecar
}

// limited are the LimitRanges of a namespace.
type limited struct {
	ranges []corev1.LimitRange
	err    error
}

func (l limited) list(context.Context, string) ([]corev1.LimitRange, error) { return l.ranges, l.err }

// limitRange has one item.
func limitRange(item corev1.LimitRangeItem) limited {
	return limited{ranges: []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}}}
}

// planned and created are the pods after EVALUATE and, of that, after CREATE.
func (l limited) planned(t *testing.T, pod, cluster []byte) (planned, created []byte, o *observed) {
	t.Helper()
	o = &observed{}
	server := &Lifecycle{Sidecar: shippedDefaults(), LimitRanges: l.list, Observer: o, Logger: slog.New(slog.DiscardHandler)}
	ask := func(pod []byte, operation lifecycle.OperatorOperationType_Type) []byte {
		answer, err := server.LifecycleHook(t.Context(), &lifecycle.OperatorLifecycleRequest{
			ObjectDefinition: pod, ClusterDefinition: cluster, OperationType: &lifecycle.OperatorOperationType{Type: operation},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.GetJsonPatch()) == 0 {
			return pod
		}
		return patched(t, pod, answer)
	}
	planned = ask(pod, evaluate)
	return planned, ask(planned, create), o
}

// A LimitRange changes what is created, and never the plan of a pod that can be created, so that it rolls no instance.
func TestLifecycleHook_fitsTheLimitRanges(t *testing.T) {
	t.Parallel()
	container, wholePod := corev1.LimitTypeContainer, corev1.LimitTypePod
	plan, _, _ := limited{}.planned(t, burstable(t), dozing(t, 1))
	for _, row := range []struct {
		rule               string
		limits             limited
		sidecar, bootstrap corev1.ResourceList
	}{
		{"without one the settings are the requests", limited{}, quantities("10m", "32Mi"), quantities("10m", "64Mi")},
		{"requests rise to a minimum", limitRange(corev1.LimitRangeItem{Type: container, Min: quantities("50m", "64Mi")}), quantities("50m", "64Mi"), quantities("50m", "64Mi")},
		{"a limit below the minimum rises, too", limitRange(corev1.LimitRangeItem{Type: container, Min: quantities("200m", "")}), quantities("200m", "32Mi"), quantities("200m", "64Mi")},
		{"requests rise until the limit is so many times as much", limitRange(corev1.LimitRangeItem{Type: container, MaxLimitRequestRatio: quantities("4", "3")}),
			quantities("25m", "32Mi"), quantities("500m", "357913942")},
		{"so they do for the ratio of the whole pod", limitRange(corev1.LimitRangeItem{Type: wholePod, MaxLimitRequestRatio: quantities("4", "")}),
			quantities("25m", "32Mi"), quantities("500m", "64Mi")},
		{"what cannot be read limits nothing", limited{err: errors.New("not now")}, quantities("10m", "32Mi"), quantities("10m", "64Mi")},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			planned, created, _ := row.limits.planned(t, burstable(t), dozing(t, 1))
			if diff := cmp.Diff(string(plan), string(planned)); diff != "" {
				t.Errorf("the plan changes:\n%s", diff)
			}
			var pod corev1.Pod
			if err := json.Unmarshal(created, &pod); err != nil {
				t.Fatal(err)
			}
			for of, want := range map[*corev1.Container]corev1.ResourceList{&pod.Spec.Containers[1]: row.sidecar, &pod.Spec.InitContainers[0]: row.bootstrap} {
				if diff := cmp.Diff(want, of.Resources.Requests); diff != "" {
					t.Errorf("requests of %s (-want +got):\n%s", of.Name, diff)
				}
			}
		})
	}
}

func TestLifecycleHook_injectsNothingThatALimitRangeRefuses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		item     corev1.LimitRangeItem
		injected bool
		why      string
	}{
		{"a maximum of the pod that leaves no room", corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: quantities("2", "")}, false,
			"the whole pod: the maximum of cpu is 2, its limit 2100m"},
		{"a maximum below the sidecar's limit, which PostgreSQL fits", corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: quantities("", "1056Mi")}, false,
			"the whole pod: the maximum of memory is 1056Mi, its limit 1088Mi"},
		{"a pod that is refused without the sidecar keeps its plan, so that the running instance stays", corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: quantities("1", "")}, true, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pod := burstable(t)
			planned, created, o := limitRange(row.item).planned(t, pod, dozing(t, 1))
			if got := string(planned) != string(pod) && string(created) != string(pod); got != row.injected {
				t.Fatalf("it is injected: %t, want %t", got, row.injected)
			}
			if row.injected {
				return
			}
			if string(planned) != string(pod) || string(created) != string(pod) {
				t.Error("the plan and the pod differ")
			}
			if diff := cmp.Diff([]Result{ResultForbidden, ResultForbidden}, o.results); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			for _, reason := range o.reasons {
				if !strings.HasSuffix(reason, "a LimitRange of its namespace would refuse the pod with it: "+row.why) {
					t.Errorf("the reason is %q", reason)
				}
			}
		})
	}
}

// A pod that the namespace's defaults make Guaranteed gets a sidecar with which it is.
func TestLifecycleHook_judgesTheClassByTheNamespacesDefaults(t *testing.T) {
	t.Parallel()
	same := quantities("1", "1Gi")
	limits := limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: same, DefaultRequest: same})
	_, created, _ := limits.planned(t, encode(t, instance(t)), dozing(t, 1))
	var pod corev1.Pod
	if err := json.Unmarshal(created, &pod); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(quantities("100m", "64Mi"), pod.Spec.Containers[1].Resources.Requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// The API server admits what the hook makes under each LimitRange that admits the operator's own pod.
func TestLifecycleHook_isAdmittedByAnAPIServer(t *testing.T) {
	t.Parallel()
	admin, err := client.New(apiservertest.Start(t), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	container, wholePod := corev1.LimitTypeContainer, corev1.LimitTypePod
	for name, item := range map[string]corev1.LimitRangeItem{
		"none":                  {Type: container},
		"minimum":               {Type: container, Min: quantities("50m", "64Mi")},
		"large-minimum":         {Type: container, Min: quantities("150m", "128Mi")},
		"maximum":               {Type: container, Max: quantities("2", "1Gi")},
		"ratio":                 {Type: container, MaxLimitRequestRatio: quantities("4", "2")},
		"fraction":              {Type: container, MaxLimitRequestRatio: quantities("4700m", "2300m")},
		"ratio-and-minimum":     {Type: container, Min: quantities("30m", "40Mi"), MaxLimitRequestRatio: quantities("4", "")},
		"ratio-of-the-pod":      {Type: wholePod, MaxLimitRequestRatio: quantities("4", "2")},
		"no-room":               {Type: wholePod, Max: quantities("2", "1Gi")},
		"minimum-of-the-pod":    {Type: wholePod, Min: quantities("500m", "512Mi")},
		"storage":               {Type: container, Min: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}},
		"ratio-that-equals-one": {Type: container, MaxLimitRequestRatio: quantities("4", "2"), Default: quantities("1", "1Gi")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespaced := func(object client.Object) client.Object { object.SetNamespace(name); return object }
			of := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}
			for _, object := range []client.Object{
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, namespaced(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}), of,
			} {
				if err := admin.Create(t.Context(), object); err != nil {
					t.Fatal(err)
				}
			}
			try := func(body []byte) error {
				var pod corev1.Pod
				if err := json.Unmarshal(body, &pod); err != nil {
					t.Fatal(err)
				}
				for _, container := range containersOf(&pod) {
					container.Image = "example.org/image:v1" // the operator names its own from its environment
				}
				return admin.Create(t.Context(), namespaced(&pod), client.DryRunAll)
			}
			if err := try(burstable(t)); err != nil {
				t.Fatalf("the operator's own pod: %v", err)
			}
			for what, cluster := range map[string][]byte{"a pod that dozes": dozing(t, 1), "one that does not": dozing(t, 2)} {
				planned, created, o := limited{ranges: []corev1.LimitRange{*of}}.planned(t, burstable(t), cluster)
				if err := try(created); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if injected := string(planned) != string(burstable(t)); injected != (name != "no-room") {
					t.Errorf("%s: injected: %t, %v", what, injected, o.reasons)
				}
			}
		})
	}
}

// The admission plugin of the API server says the same of these pods.
func TestLimits_refuseByContainerAndByPod(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	of := func(requested, limited corev1.ResourceList) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: requested, Limits: limited}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "first", Resources: of(quantities("3", ""), quantities("3", ""))},
			{Name: "restartable", RestartPolicy: &always, Resources: of(quantities("1", ""), quantities("1", ""))},
			{Name: "last", Resources: of(quantities("3", ""), quantities("3", ""))},
		},
		Containers: []corev1.Container{{Name: "postgres", Resources: of(quantities("2", ""), quantities("2", ""))}},
	}}
	for rule, row := range map[string]struct {
		item corev1.LimitRangeItem
		want string
	}{
		"an init container runs beside the restartable ones before it": {
			corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: quantities("3900m", "")}, "the whole pod: the maximum of cpu is 3900m, its limit 4"},
		"and no more than that":            {corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: quantities("4", "")}, ""},
		"a maximum demands a limit":        {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: quantities("", "1Gi")}, "container first: the maximum of memory is 1Gi, its limit 0"},
		"a ratio demands a request":        {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: quantities("", "2")}, "container first: the limit of memory may be 2 times its request, and they are 0 and 0"},
		"a minimum holds for each":         {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: quantities("1500m", "")}, "container restartable: the minimum of cpu is 1500m, its request 1"},
		"volumes are none of its business": {corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Min: quantities("9", "")}, ""},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			before := pod.DeepCopy()
			if got := (limits{row.item}).refusal(pod); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the pod has changed:\n%s", diff)
			}
		})
	}
}
