package policies

import (
	"fmt"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

func (s *server) takesOwnWrites(t *testing.T) {
	s.must(s.admin.Patch(t.Context(), cluster("shop", "ledger", ""), client.RawPatch(types.MergePatchType, large()))) // within the cost of CEL
	for _, name := range []string{"orders", "ledger"} {                                                               // an account of its own, and a shared one
		c, ctx, at := s.sidecar(name, name+"-2"), t.Context(), now
		view := func() kubernetes.View {
			v, err := c.Get(ctx)
			s.must(err)
			return v
		}
		announced, until := "uid 2026-03-01T00:00:30Z", "2026-03-02T00:00:00Z"
		for _, step := range []struct {
			rule string
			do   func() error
		}{
			{"announce", func() error { return written(c.Annotate(ctx, view(), contract.AnnotationAnnounced, &announced)) }},
			{"take the announcement back", func() error { return written(c.Annotate(ctx, view(), contract.AnnotationAnnounced, nil)) }},
			{"announce again", func() error { return written(c.Annotate(ctx, view(), contract.AnnotationAnnounced, &announced)) }},
			{"suspend", func() error { return changed(c.SuspendBackups(ctx, at)) }},
			{"look for Backups", func() error { _, err := c.RunningBackups(ctx); return err }},
			{"hibernate", func() error { return written(c.Hibernate(ctx, view(), at, "idle")) }},
			{"withdraw", func() error { return written(c.Withdraw(ctx, view())) }},
			{"resume", func() error { r, err := c.ResumeBackups(ctx); return changed(r.Changed, err) }},
			{"keep awake", func() error { return written(c.Annotate(ctx, view(), contract.AnnotationKeepAwakeUntil, &until)) }},
			{"release", func() error { return written(c.Annotate(ctx, view(), contract.AnnotationKeepAwakeUntil, nil)) }},
		} {
			if err := step.do(); err != nil {
				t.Errorf("the sidecar of %s cannot %s: %v", name, step.rule, err)
			}
		}
		v := view()
		replica := s.sidecar(name, name+"-1")
		if _, err := replica.Annotate(ctx, v, contract.AnnotationAnnounced, &announced); err == nil {
			t.Errorf("a replica of %s announces", name)
		}
	}
}

// large makes a Cluster about as large as one can be.
func large() []byte {
	var annotations, labels, parameters, lines []string
	for i := range 300 {
		annotations = append(annotations, fmt.Sprintf(`"example.org/a%d":%q`, i, strings.Repeat("x", 600)))
		labels = append(labels, fmt.Sprintf(`"example.org/l%d":"x"`, i))
		parameters = append(parameters, fmt.Sprintf(`"p.q%d":%q`, i, strings.Repeat("y", 200)))
		lines = append(lines, fmt.Sprintf(`"host all u%d 10.0.0.%d/32 scram-sha-256"`, i, i%256))
	}
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%s},"labels":{%s}},"spec":{"postgresql":{"parameters":{%s},"pg_hba":[%s]}}}`,
		strings.Join(annotations, ","), strings.Join(labels, ","), strings.Join(parameters, ","), strings.Join(lines, ","))
}

// changed is an error unless exactly one was changed.
func written(_ kubernetes.View, err error) error { return err }

func changed(count int, err error) error {
	if err == nil && count != 1 {
		return fmt.Errorf("%d changed", count)
	}
	return err
}

// leavesTheInstanceManager does, from a replica, what the operator's Role permits.
func (s *server) leavesTheInstanceManager(t *testing.T) {
	c, ctx := s.inside("orders-1"), t.Context()
	key := types.NamespacedName{Namespace: "shop", Name: "orders"}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }
	merge := func(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }
	for _, row := range []struct {
		rule string
		do   func() error
	}{
		{"patch the status of its Cluster", func() error {
			return c.Status().Patch(ctx, cluster("shop", "orders", ""), merge(`{"status":{"phaseReason":"x"}}`))
		}},
		{"replace the status of its Cluster", func() error {
			var living cnpgv1.Cluster
			s.must(c.Get(ctx, key, &living))
			living.Status.ReadyInstances = 2
			return c.Status().Update(ctx, &living)
		}},
		{"patch the status of a Backup", func() error {
			return c.Status().Patch(ctx, &cnpgv1.Backup{ObjectMeta: named("orders-old")}, merge(`{"status":{"phase":"completed"}}`))
		}},
		{"delete a Backup", func() error { return c.Delete(ctx, &cnpgv1.Backup{ObjectMeta: named("orders-old")}) }},
		{"put a finalizer on a Database", func() error {
			var database cnpgv1.Database
			s.must(c.Get(ctx, types.NamespacedName{Namespace: "shop", Name: "orders-app"}, &database))
			database.Finalizers = append(database.Finalizers, "cnpg.io/deleteDatabase")
			return c.Update(ctx, &database)
		}},
		{"hold the Lease", func() error {
			var lease coordinationv1.Lease
			s.must(c.Get(ctx, key, &lease))
			lease.Spec.HolderIdentity = ptr.To("orders-1")
			return c.Update(ctx, &lease)
		}},
		{"write an Event", func() error {
			return c.Create(ctx, &corev1.Event{ObjectMeta: named("told"), InvolvedObject: corev1.ObjectReference{Namespace: "shop", Name: "orders"}})
		}},
	} {
		if err := row.do(); err != nil {
			t.Errorf("the instance manager cannot %s: %v", row.rule, err)
		}
	}
}
