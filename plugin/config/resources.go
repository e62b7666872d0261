package config

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/plugin/requests"
)

// The sidecar's default requests. It uses 0.03 % of a core while no client connects, and less than 20 MiB in its two processes;
// under load it may use up to its limit.
const (
	usedCPU    = "10m"
	usedMemory = "32Mi"
)

// The smallest quantities: the sidecar's two processes do not start with a smaller limit of memory, and a smaller request is a
// quantity without its unit.
var (
	leastCPU           = resource.MustParse("1m")
	leastMemory        = resource.MustParse(usedMemory)
	leastMemoryRequest = resource.MustParse("1Mi")
)

// sidecarResources reads the requests and limits. An explicit request applies to every pod.
func (r *reader) sidecarResources() requests.Sidecars {
	resources := requests.Sidecars{
		Burstable:  corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}},
		Guaranteed: corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}},
	}
	for _, of := range []struct {
		name                 corev1.ResourceName
		request, limit, used string
		leastRequest, least  resource.Quantity
	}{
		{corev1.ResourceCPU, "SIDECAR_CPU_REQUEST", "SIDECAR_CPU_LIMIT", usedCPU, leastCPU, leastCPU},
		{corev1.ResourceMemory, "SIDECAR_MEMORY_REQUEST", "SIDECAR_MEMORY_LIMIT", usedMemory, leastMemoryRequest, leastMemory},
	} {
		limit := r.quantity(of.limit, of.least)
		burstable, guaranteed := resource.MustParse(of.used), limit
		if r.values[of.request] != "" {
			burstable = r.quantity(of.request, of.leastRequest)
			guaranteed = burstable
			if burstable.Cmp(limit) > 0 {
				r.bad(of.request, fmt.Sprintf("it must be at most %s, which is %q", of.limit, r.values[of.limit]))
			}
		} else if burstable.Cmp(limit) > 0 {
			burstable = limit
		}
		resources.Burstable.Requests[of.name], resources.Burstable.Limits[of.name] = burstable, limit
		resources.Guaranteed.Requests[of.name], resources.Guaranteed.Limits[of.name] = guaranteed, limit
	}
	return resources
}

// quantity reads a quantity, of memory in whole bytes.
func (r *reader) quantity(name string, least resource.Quantity) resource.Quantity {
	quantity, err := resource.ParseQuantity(r.values[name])
	if memory := least.Format == resource.BinarySI; err != nil || quantity.Cmp(least) < 0 || memory && quantity.CmpInt64(quantity.Value()) != 0 {
		allowed := fmt.Sprintf("it must be a quantity of at least %s, such as 100m", &least)
		if memory {
			allowed = fmt.Sprintf("it must be a quantity of whole bytes, of at least %s, such as 64Mi", &least)
		}
		r.bad(name, allowed)
	}
	return quantity
}
