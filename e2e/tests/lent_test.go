package tests

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// condition is what a test needs a borrowed cluster to be.
type condition int

const (
	awake condition = iota
	asleep
)

// shape is what a borrowed cluster has been made as.
type shape struct {
	instances int
	dozes     bool // A pod can doze only if it was made when its cluster could.
}

// lent has the clusters that no test is using, by their shape. Each has a namespace of its own, with a client. To make one costs more than
// to wake one.
var lent = struct {
	sync.Mutex
	free map[shape][]*cnpgv1.Cluster
}{free: map[shape][]*cnpgv1.Cluster{}}

// borrow gives the test a cluster that never falls asleep by itself, and its namespace. An earlier test may have used it, so that a test
// that changes the specification or what is in the database makes one of its own. It is given back in whatever condition it is in, unless
// the test has failed.
func (s *story) borrow(instances int, needs condition) *cnpgv1.Cluster {
	s.Helper()
	return s.borrowShaped(shape{instances: instances}, needs)
}

// borrowDozing is borrow for a cluster of one instance that dozes after half a minute.
func (s *story) borrowDozing() *cnpgv1.Cluster {
	s.Helper()
	c := s.borrowShaped(shape{instances: 1, dozes: true}, awake)
	s.annotate(c, scenario.DozeMinutes, dozeMinutes)
	return c
}

func (s *story) borrowShaped(like shape, needs condition) *cnpgv1.Cluster {
	s.Helper()
	c := takeLent(like, needs)
	if c == nil {
		c = s.makesLent(like)
	}
	s.namespace = c.Namespace
	spends(s.T, c.Namespace)
	s.Cleanup(func() {
		if s.Failed() { // its namespace is deleted with the test's
			return
		}
		if s.ctx = cleanup(s.T); s.tidies(c, like) != nil {
			_ = deleteNamespace(s.ctx, c.Namespace)
			return
		}
		lent.Lock()
		defer lent.Unlock()
		lent.free[like] = append(lent.free[like], c)
	})
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	switch isOn := scenario.HibernationOn(c); {
	case needs == asleep && isOn:
		s.hibernated(c)
	case needs == asleep:
		s.sleeps(c)
	case isOn:
		s.wake(c)
		s.awaitSlices(c, between+toSettle)
	default:
		s.must(kube.Annotate(s.ctx, c, scenario.Fence, nil)) // it may doze
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))       // it may have been woken only just now
		s.awakeAgain(c)
	}
	return c
}

// makesLent makes a cluster that can be borrowed, and its namespace.
func (s *story) makesLent(like shape) *cnpgv1.Cluster {
	s.Helper()
	namespace, err := kube.Namespace(s.ctx, "lent")
	s.must(err)
	s.namespace = namespace
	c := kube.NewCluster(namespace, "lent", like.instances, never)
	c.Spec.PostgresConfiguration.Parameters = map[string]string{"max_connections": "300", "max_prepared_transactions": "5"}
	if like.dozes {
		c.Annotations[scenario.DozeMinutes] = dozesLater
	}
	return s.running(c)
}

// takeLent returns a free cluster, if possible one that need not be woken or put to sleep, or nil.
func takeLent(like shape, needs condition) *cnpgv1.Cluster {
	lent.Lock()
	defer lent.Unlock()
	free := lent.free[like]
	if len(free) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(free, func(c *cnpgv1.Cluster) bool { return scenario.HibernationOn(c) == (needs == asleep) }))
	c := free[i]
	lent.free[like] = slices.Delete(free, i, i+1)
	return c
}

// tidies removes what a test has added to a borrowed cluster and its namespace.
func (s *story) tidies(c *cnpgv1.Cluster, like shape) error {
	s.Helper()
	annotations := map[string]any{scenario.Enabled: "true", scenario.InactivityMinutes: never}
	for _, key := range []string{
		scenario.Activity, scenario.Ignore, scenario.KeepAwake, scenario.KeepAwakeUntil, scenario.Database, scenario.WakeBy, scenario.WakeRequested,
		scenario.DozeMinutes, "cnpg.io/reconciliationLoop",
		scenario.LastWake, // the plugin writes the Event of this wake anew once it is deleted
	} {
		annotations[key] = nil
	}
	if like.dozes {
		annotations[scenario.DozeMinutes] = dozesLater
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	s.must(err)
	if err := kube.Patch(s.ctx, c, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	for _, kind := range []client.Object{
		&cnpgv1.ScheduledBackup{}, &cnpgv1.Backup{}, &cnpgv1.Pooler{}, &networkingv1.NetworkPolicy{}, &corev1.Event{},
	} {
		if err := kube.DeleteAllOf(s.ctx, kind, client.InNamespace(s.namespace)); err != nil {
			return err
		}
	}
	if err := s.deletesServices(c); err != nil {
		return err
	}
	if err := kube.Get(s.ctx, client.ObjectKeyFromObject(c), c); err != nil {
		return err
	}
	if scenario.HibernationOn(c) && len(s.slices(c)) == 0 { // it was put to sleep by hand, so that no client could wake it
		delete(c.Annotations, scenario.Hibernation)
		return kube.Wake(s.ctx, c)
	}
	return nil
}

// deletesServices deletes the Services that are not the operator's.
func (s *story) deletesServices(c *cnpgv1.Cluster) error {
	s.Helper()
	var services corev1.ServiceList
	if err := kube.List(s.ctx, &services, client.InNamespace(c.Namespace)); err != nil {
		return err
	}
	for i := range services.Items {
		if len(services.Items[i].OwnerReferences) != 0 {
			continue
		}
		if err := kube.Delete(s.ctx, &services.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// returnLent deletes the clusters for borrowing that no test is using.
func returnLent(ctx context.Context) {
	for _, free := range lent.free {
		for _, c := range free {
			_ = deleteNamespace(ctx, c.Namespace)
		}
	}
	clear(lent.free)
}
