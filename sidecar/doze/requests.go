package doze

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

const (
	cpu    = "cpu"
	memory = "memory"
)

// smallestCPU is the CPU request of a dozing PostgreSQL. None at all could change the pod's QoS class, which Kubernetes
// refuses.
const smallestCPU = "10m"

// Requests are resource requests to set, by the name of the resource.
type Requests map[string]resource.Quantity

// Why the requests of a pod are not lowered, for the log.
const (
	notBurstable = "the pod is not Burstable"
	notStored    = "the pod has no specification by the operator"
	setByOthers  = "another client sets the requests"
	restarts     = "a resize would restart the container"
)

// Shrink returns the requests to set for a doze, without those that are small already, or why they cannot be set.
// toMemory is the memory request; zero leaves it as it is.
func Shrink(pod *kubernetes.Pod, toMemory resource.Quantity) (to Requests, against string) {
	container, target, ok := requestsOf(pod)
	switch {
	case !ok:
		return nil, notStored
	case pod.Status.QOSClass != "Burstable":
		return nil, notBurstable
	case othersSet(pod, container, target):
		return nil, setByOthers
	}
	floors := Requests{cpu: resource.MustParse(smallestCPU)}
	if !toMemory.IsZero() {
		floors[memory] = toMemory
	}
	to = Requests{}
	for name, floor := range floors {
		want, known := target[name]
		request := container.Resources.Requests[name]
		switch {
		case !known || want.Cmp(floor) <= 0 || request.Cmp(want) != 0: // small already
		case slices.ContainsFunc(container.ResizePolicy, func(p kubernetes.ResizePolicy) bool {
			return p.ResourceName == name && p.RestartPolicy != "NotRequired"
		}):
			against = restarts
		default:
			to[name] = floor
		}
	}
	return to, against
}

// Grow returns the requests to set after a doze: the original value of each that this project has lowered.
func Grow(pod *kubernetes.Pod) Requests {
	container, target, _ := requestsOf(pod)
	to := Requests{}
	for name, want := range target {
		if request := container.Resources.Requests[name]; request.Cmp(want) < 0 && ours(pod, name) {
			to[name] = want
		}
	}
	return to
}

// resizePending is the condition of a pod whose node cannot give it, now or ever, what it requests since a resize.
const resizePending = "PodResizePending"

// isResizePending reports whether the node has not granted requests that this project has set.
func isResizePending(pod *kubernetes.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c kubernetes.Condition) bool { return c.Type == resizePending && c.Status == "True" }) &&
		(ours(pod, cpu) || ours(pod, memory))
}

// requestsOf returns PostgreSQL's container, and the CPU and memory requests with which the operator created it. ok is
// false if the pod lacks the annotation or the container.
func requestsOf(pod *kubernetes.Pod) (container kubernetes.Container, target Requests, ok bool) {
	var spec kubernetes.PodSpec
	if json.Unmarshal([]byte(pod.Annotations[contract.AnnotationPodSpec]), &spec) != nil {
		return kubernetes.Container{}, nil, false
	}
	container, ok = postgresContainer(pod.Spec)
	stored, known := postgresContainer(spec)
	target = Requests{}
	for _, name := range []string{cpu, memory} {
		if request, ok := stored.Resources.Requests[name]; ok {
			target[name] = request
		} else if limit, ok := stored.Resources.Limits[name]; ok { // then Kubernetes uses it
			target[name] = limit
		}
	}
	return container, target, ok && known
}

func postgresContainer(spec kubernetes.PodSpec) (kubernetes.Container, bool) {
	for _, container := range spec.Containers {
		if container.Name == contract.PostgresContainer {
			return container, true
		}
	}
	return kubernetes.Container{}, false
}

// othersSet reports whether another client, such as a vertical autoscaler, has set the container's requests, when the
// pod was created or later.
func othersSet(pod *kubernetes.Pod, container kubernetes.Container, target Requests) bool {
	made := containerField("image")
	for _, name := range []string{cpu, memory} {
		if contract.SetByOthers(pod.ManagedFields, made, requestPath(name)...) {
			return true
		}
		want, known := target[name]
		request := container.Resources.Requests[name]
		if order := request.Cmp(want); known && (order > 0 || order < 0 && !ours(pod, name)) {
			return true
		}
	}
	return false
}

// ours reports whether this project has set the current value of a request.
func ours(pod *kubernetes.Pod, name string) bool {
	return contract.SetByUs(pod.ManagedFields, requestPath(name)...)
}

// containerField returns the path of a field of PostgreSQL's container.
func containerField(field ...string) []string {
	return append([]string{"spec", "containers", contract.ListItem(contract.PostgresContainer)}, field...)
}

func requestPath(name string) []string { return containerField("resources", "requests", name) }
