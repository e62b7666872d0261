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
			{"hibernate", func() error { return written(c.Hibernate(ctx, view(), at, "idle", "{}")) }},
			{"withdraw", func() error { return written(c.Withdraw(ctx, view())) }},
			{"resume", func() error { r, err := c.ResumeBackups(ctx); return changed(r.Changed, err) }},
			{"keep awake", func() error { return written(c.Annotate(ctx, view(), contract.AnnotationKeepAwakeUntil, &until)) }},
			{"release", func() error { return written(c.Annotate(ctx, view(), contract.AnnotationKeepAwakeUntil, nil)) }},
		} {
			if err := step.do(); err != nil {
				t.Errorf("the sidecar of %s cannot %s: %v", name, step.rule, err)
			}
		}
		s.dozes(t, name)
		v := view()
		replica := s.sidecar(name, name+"-1")
		if _, err := replica.Annotate(ctx, v, contract.AnnotationAnnounced, &announced); err == nil {
			t.Errorf("a replica of %s announces", name)
		}
	}
}

// uid is that of a pod.
func (s *server) uid(pod string) string {
	s.t.Helper()
	var found corev1.Pod
	s.must(s.admin.Get(s.t.Context(), types.NamespacedName{Namespace: "shop", Name: pod}, &found))
	return string(found.UID)
}

// dozes has the primary's pod write what it writes when its cluster dozes, is woken, and is fenced by a person.
func (s *server) dozes(t *testing.T, name string) {
	c, object := s.inside(name+"-2"), cluster("shop", name, "")
	person := func(patch string) {
		s.must(s.admin.Patch(t.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	person(`{"metadata":{"annotations":{"xata.io/scale-to-zero-announced":"x","xata.io/scale-to-zero-gateway-ready":"x","xata.io/scale-to-zero-gateway-holding":"x"}}}`)
	for _, row := range []struct{ rule, patch string }{
		{"doze", `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]","xata.io/scale-to-zero-dozing-since":"x",
			"xata.io/scale-to-zero-announced":null}}}`},
		{"say that PostgreSQL has stopped", `{"metadata":{"annotations":{"xata.io/scale-to-zero-postgres-stopped":"uid"}}}`},
		{"say that it was not started", fmt.Sprintf(`{"metadata":{"annotations":{"xata.io/scale-to-zero-restart-failed":%q}}}`, s.uid(name+"-2"))},
		{"say so no longer", `{"metadata":{"annotations":{"xata.io/scale-to-zero-restart-failed":null}}}`},
		{"take the fence back", `{"metadata":{"annotations":{"cnpg.io/fencedInstances":null,"xata.io/scale-to-zero-dozing-since":null,"xata.io/scale-to-zero-postgres-stopped":null}}}`},
	} {
		if err := (write{object: object, patch: row.patch}).try(t.Context(), c); err != nil {
			t.Errorf("the sidecar of %s cannot %s: %v", name, row.rule, err)
		}
	}
	person(`{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"` + name + `-1\"]"}}}`)
	for _, value := range []string{`null`, `"[\"*\"]"`} {
		patch := `{"metadata":{"annotations":{"cnpg.io/fencedInstances":` + value + `}}}`
		if err := (write{object: object, patch: patch}).try(t.Context(), c); !byPolicy(err) {
			t.Errorf("a fence of names becomes %s: %v", value, err)
		}
	}
	person(`{"metadata":{"annotations":{"cnpg.io/fencedInstances":null}}}`)
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

func written(_ kubernetes.View, err error) error { return err }

// changed returns an error unless exactly one object was changed.
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
