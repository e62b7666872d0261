package cnpgi

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// limits are the items of a namespace's LimitRanges, by which the API server admits its pods (1.34:
// plugin/pkg/admission/limitranger).
type limits []corev1.LimitRangeItem

// defaulted returns a copy of the pod with the requests and limits that the API server adds.
func (l limits) defaulted(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, container := range containersOf(pod) {
		of := &container.Resources
		of.Requests = filled(of.Requests, of.Limits)
		for _, item := range l {
			if item.Type == corev1.LimitTypeContainer {
				of.Requests, of.Limits = filled(of.Requests, item.DefaultRequest), filled(of.Limits, item.Default)
			}
		}
	}
	return pod
}

// guaranteed reports whether the pod's QoS class without the sidecar is Guaranteed.
func guaranteed(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(containersOf(pod), func(c *corev1.Container) bool {
		return c.Name != containerName && !allowsGuaranteed(c.Resources)
	})
}

// containersOf returns the pod's containers of both kinds.
func containersOf(pod *corev1.Pod) []*corev1.Container {
	var found []*corev1.Container
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			found = append(found, &containers[i])
		}
	}
	return found
}

// filled returns the quantities with the others for the names that it lacks.
func filled(quantities, others corev1.ResourceList) corev1.ResourceList {
	all := maps.Clone(others)
	if all == nil {
		return quantities
	}
	maps.Copy(all, quantities)
	return all
}

// fit raises the requests and limits to the smallest values that the LimitRanges allow. It lowers nothing.
func (l limits) fit(resources corev1.ResourceRequirements) corev1.ResourceRequirements {
	fitted := *resources.DeepCopy()
	for _, item := range l {
		if item.Type == corev1.LimitTypeContainer {
			for name, least := range item.Min {
				raise(fitted.Requests, name, least)
				raise(fitted.Limits, name, least)
			}
		}
	}
	for _, item := range l {
		// A pod keeps to the ratio if it did so without the container and the container does.
		for name, ratio := range item.MaxLimitRequestRatio {
			if limit, ok := fitted.Limits[name]; ok && ratio.MilliValue() > 0 {
				raise(fitted.Requests, name, leastRequest(name, limit, ratio))
			}
		}
	}
	return fitted
}

// raise raises a quantity that is set.
func raise(quantities corev1.ResourceList, name corev1.ResourceName, to resource.Quantity) {
	if quantity, ok := quantities[name]; ok && quantity.Cmp(to) < 0 {
		quantities[name] = to
	}
}

// leastRequest returns the smallest request of which the limit is at most so many times as much, in whole bytes for
// memory.
func leastRequest(name corev1.ResourceName, limit, ratio resource.Quantity) resource.Quantity {
	divisor := ratio.MilliValue()
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity((limit.MilliValue()*1000+divisor-1)/divisor, limit.Format)
	}
	return *resource.NewQuantity((limit.Value()*1000+divisor-1)/divisor, limit.Format)
}

// refusal says why the API server would not admit the pod, or returns "".
func (l limits) refusal(pod *corev1.Pod) string {
	if len(l) == 0 {
		return ""
	}
	pod = l.defaulted(pod)
	for i := range l {
		switch item := &l[i]; item.Type {
		case corev1.LimitTypeContainer:
			for _, container := range containersOf(pod) {
				if why := refused(item, container.Resources); why != "" {
					return fmt.Sprintf("container %s: %s", container.Name, why)
				}
			}
		case corev1.LimitTypePod:
			of := corev1.ResourceRequirements{
				Requests: total(pod, func(r corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }),
				Limits:   total(pod, func(r corev1.ResourceRequirements) corev1.ResourceList { return r.Limits }),
			}
			if why := refused(item, of); why != "" {
				return "the whole pod: " + why
			}
		default: // a claim is no part of a pod
		}
	}
	return ""
}

// refused says which limit the resources are outside of, or returns "".
func refused(item *corev1.LimitRangeItem, of corev1.ResourceRequirements) string {
	for _, name := range slices.Sorted(maps.Keys(item.Min)) {
		least, request, limit := item.Min[name], of.Requests[name], of.Limits[name]
		if _, limited := of.Limits[name]; request.Cmp(least) < 0 || limited && limit.Cmp(least) < 0 {
			return fmt.Sprintf("the minimum of %s is %s, its request %s", name, &least, &request)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(item.Max)) {
		most, request, limit := item.Max[name], of.Requests[name], of.Limits[name]
		if _, limited := of.Limits[name]; !limited || limit.Cmp(most) > 0 || request.Cmp(most) > 0 {
			return fmt.Sprintf("the maximum of %s is %s, its limit %s", name, &most, &limit)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(item.MaxLimitRequestRatio)) {
		ratio, request, limit := item.MaxLimitRequestRatio[name], of.Requests[name], of.Limits[name]
		if least := leastRequest(name, limit, ratio); limit.Sign() <= 0 || request.Cmp(least) < 0 {
			return fmt.Sprintf("the limit of %s may be %s times its request, and they are %s and %s", name, &ratio,
				&limit, &request)
		}
	}
	return ""
}

// total adds up a pod: the larger of what its containers need together and of what an init container needs, which runs
// together with the restartable ones before it.
func total(pod *corev1.Pod, of func(corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
	together, starting, restartable := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range pod.Spec.Containers {
		plus(together, of(pod.Spec.Containers[i].Resources))
	}
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		now := maps.Clone(restartable)
		plus(now, of(container.Resources))
		if policy := container.RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			plus(together, of(container.Resources))
			restartable = now
		}
		larger(starting, now)
	}
	larger(together, starting)
	return together
}

func plus(sum, quantities corev1.ResourceList) {
	for name, quantity := range quantities {
		before := sum[name]
		before.Add(quantity)
		sum[name] = before
	}
}

func larger(quantities, others corev1.ResourceList) {
	for name, quantity := range others {
		if before, ok := quantities[name]; !ok || before.Cmp(quantity) < 0 {
			quantities[name] = quantity
		}
	}
}
