package wake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// addPoolers adds the Services of Poolers that can be routed here, up to mostServices, and bars each Pooler that has
// another one, so that it keeps its instances.
func (s *snapshot) addPoolers(services []corev1.Service) {
	instances := s.services
	for i := range services {
		service := &services[i]
		for j := range s.poolers {
			switch pooler := &s.poolers[j]; {
			case !endpointslice.ServesPooler(service, pooler):
			case slices.ContainsFunc(instances, func(s corev1.Service) bool { return s.UID == service.UID }):
			case endpointslice.RoutesPooler(service) && len(s.services) < mostServices:
				s.services = append(s.services, *service)
			default:
				s.barred = append(s.barred, pooler.Name)
			}
		}
	}
}

func (a *Access) poolers(seen *snapshot) []plan.Pooler {
	led := seen.led()
	var poolers []plan.Pooler
	for i := range seen.poolers {
		of := &seen.poolers[i]
		pooler := plan.Pooler{
			Name: of.Name, Instances: ptr.Deref(of.Spec.Instances, 1), Mark: of.Annotations[contract.AnnotationInstances],
			Ours:    contract.SetByUs(of.ManagedFields, "spec", "instances"),
			Useless: of.Spec.Type == cnpgv1.PoolerTypeRO && seen.cluster != nil && seen.cluster.Spec.Instances < 2,
		}
		here := !slices.Contains(seen.barred, of.Name)
		for j := range seen.services {
			service := &seen.services[j]
			if endpointslice.PoolerOf(service) != of.Name {
				continue
			}
			pooler.Services = append(pooler.Services, seen.service(service, led))
			since := a.ledSince(seen, service)
			if here = here && !since.IsZero(); since.After(pooler.LedSince) {
				pooler.LedSince = since
			}
		}
		if !here {
			pooler.LedSince = time.Time{}
		}
		poolers = append(poolers, pooler)
	}
	return poolers
}

// servesPooler reports whether the Service to which the Pooler's PgBouncer connects has ready endpoints.
func (s *snapshot) servesPooler(name string) bool {
	of := slices.IndexFunc(s.poolers, func(p cnpgv1.Pooler) bool { return p.Name == name })
	if of < 0 {
		return true
	}
	behind := endpointslice.BehindPooler(&s.poolers[of])
	at := slices.IndexFunc(s.services, func(s corev1.Service) bool { return s.Name == behind })
	return at < 0 || len(endpointslice.Ready(&s.services[at], s.slices)) != 0
}

// ledSince is since when slices of this replica lead the Service's clients here, of every family; zero if they do not.
func (a *Access) ledSince(seen *snapshot, service *corev1.Service) (since time.Time) {
	families := 0
	for i := range seen.slices {
		if slice := &seen.slices[i]; a.isOwn(*slice) && endpointslice.ServiceOf(slice) == service.UID {
			families++
			if made := slice.CreationTimestamp.Time; made.After(since) {
				since = made
			}
		}
	}
	if families < len(service.Spec.IPFamilies) {
		return time.Time{}
	}
	return since
}

// scale changes Poolers, each unless it or the Cluster has changed: another replica, whose informers are ahead of these,
// may just have scaled it for a sleep or a wake.
func (r *router) scale(ctx context.Context, seen *snapshot, all []plan.Scaling) (failed error) {
	for _, scaling := range all {
		if current, err := r.isCurrent(ctx, seen); err != nil || !current {
			return errors.Join(failed, err)
		}
		for i := range seen.poolers {
			if pooler := &seen.poolers[i]; pooler.Name == scaling.Name {
				failed = errors.Join(failed, r.scalePooler(ctx, seen, pooler, scaling))
			}
		}
	}
	return failed
}

// scalePooler writes the number of instances and the mark in one patch, so that neither can be lost.
func (a *Access) scalePooler(
	ctx context.Context, seen *snapshot, pooler *cnpgv1.Pooler, scaling plan.Scaling,
) error {
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": pooler.ResourceVersion,
		"annotations":     map[string]*string{contract.AnnotationInstances: scaling.Mark},
	}}
	if scaling.Instances != nil {
		patch["spec"] = map[string]any{"instances": *scaling.Instances}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode the patch of Pooler %s: %w", pooler.Name, err)
	}
	target := &cnpgv1.Pooler{}
	target.Namespace, target.Name = pooler.Namespace, pooler.Name
	merge := client.RawPatch(types.MergePatchType, body)
	err = a.Client.Patch(ctx, target, merge, client.FieldOwner(contract.FieldManager))
	if err == nil {
		a.log(ctx, seen, scaling.Why, false, "pooler", pooler.Name)
	}
	if err = client.IgnoreNotFound(ignoreConflict(err)); err != nil {
		return fmt.Errorf("scale Pooler %s/%s: %w", pooler.Namespace, pooler.Name, err)
	}
	return nil
}
