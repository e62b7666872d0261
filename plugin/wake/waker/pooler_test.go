package waker

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
)

// pooled gives the cluster a Pooler with its Service.
func (w *world) pooled(kind cnpgv1.PoolerType, hba ...string) {
	w.t.Helper()
	pooler := &cnpgv1.Pooler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-pool"}}
	pooler.Spec = cnpgv1.PoolerSpec{
		Cluster: cnpgv1.LocalObjectReference{Name: name}, Type: kind, PgBouncer: &cnpgv1.PgBouncerSpec{PgHBA: hba},
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-pool", UID: types.UID(name + "-pool")}}
	service.Spec.Selector = map[string]string{"cnpg.io/poolerName": pooler.Name}
	service.Spec.Ports = []corev1.ServicePort{{Port: 5432, TargetPort: intstr.FromString("pgbouncer")}}
	if err := errors.Join(w.api.Create(w.t.Context(), pooler), w.api.Create(w.t.Context(), service)); err != nil {
		w.t.Fatal(err)
	}
}

// bounces makes a pod of the Pooler.
func (w *world) bounces() { w.bouncesAt("10.0.0.9") }

func (w *world) bouncesAt(address string) {
	w.t.Helper()
	w.pod("orders-pool-"+address, address, func(p *corev1.Pod) {
		p.Labels["cnpg.io/podRole"], p.Labels["cnpg.io/poolerName"], p.OwnerReferences = "pooler", name+"-pool", nil
	})
}

func TestResolve_holdsAPoolersClientsUntilPgBouncerServes(t *testing.T) {
	t.Parallel()
	bouncer := netip.MustParseAddrPort("10.0.0.9:5432")
	for _, row := range []struct {
		rule   string
		kind   cnpgv1.PoolerType
		hba    []string
		before func(*world)
		want   netip.AddrPort
		err    error
		least  time.Duration
	}{
		{"PgBouncer comes after PostgreSQL", cnpgv1.PoolerTypeRW, nil, func(w *world) {
			w.later(10*time.Second, w.bounces)
			w.later(12*time.Second, func() { w.bouncer.Store(true) })
		}, bouncer, nil, 12 * time.Second},
		{"PgBouncer comes before PostgreSQL", cnpgv1.PoolerTypeRW, nil, func(w *world) {
			w.bounces()
			w.bouncer.Store(true)
		}, bouncer, nil, 3 * time.Second},
		{"a PgBouncer whose node is lost delays nobody", cnpgv1.PoolerTypeRW, nil, func(w *world) {
			w.bouncesAt("10.0.0.8")
			w.bounces()
			w.waker.Listens = func(ctx context.Context, pooler netip.AddrPort) bool {
				if pooler != bouncer {
					<-ctx.Done()
				}
				return ctx.Err() == nil
			}
		}, bouncer, nil, 3 * time.Second},
		{"one of standbys waits for a standby", cnpgv1.PoolerTypeRO, nil, func(w *world) {
			w.bounces()
			w.bouncer.Store(true)
			w.later(15*time.Second, func() { w.pod("orders-2", "10.0.0.2", same) })
		}, bouncer, nil, 15 * time.Second},
		{"PgBouncer does not come", cnpgv1.PoolerTypeRW, nil, func(*world) {}, netip.AddrPort{}, gateway.ErrTimeout, 30 * time.Second},
		{"PgBouncer's rules tell addresses apart", cnpgv1.PoolerTypeRW, []string{"host all all 10.1.0.0/16 md5"}, func(w *world) {
			w.bounces()
			w.bouncer.Store(true)
			w.later(5*time.Second, func() { w.endpoint("orders-pool", "10.0.0.9") })
		}, netip.AddrPort{}, gateway.ErrReconnect, 7 * time.Second},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 30*time.Second, func(*cnpgv1.Cluster) {})
				w.pooled(row.kind, row.hba...)
				row.before(w)
				go w.operate()
				began := time.Now()
				got, err := w.waker.Resolve(t.Context(), service("-pool"), by)
				if took := time.Since(began); got != row.want || !errors.Is(err, row.err) || took < row.least || took > row.least+time.Second {
					t.Errorf("after %s: %s, %v", took, got, err)
				}
				synctest.Wait()
			})
		})
	}
}

func TestResolve_saysThatADelayedWakeWaitsForPgBouncer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3*time.Minute, func(*cnpgv1.Cluster) {})
		w.pooled(cnpgv1.PoolerTypeRW)
		go w.operate()
		if _, err := w.waker.Resolve(t.Context(), service("-pool"), by); !errors.Is(err, gateway.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		_, _, _, events := w.seen()
		const cause = "PostgreSQL accepts sessions, and the wake waits for a PgBouncer of Pooler orders-pool to accept connections"
		said := strings.Join(events, "\n")
		for _, want := range []string{
			"WakeDelayed The wake takes longer than 30s: " + cause,
			"WakeTimedOut Nothing behind Service orders-pool accepted sessions within 3m0s; the next connection tries again: " + cause,
		} {
			if !strings.Contains(said, want) {
				t.Errorf("no Event says %q:\n%s", want, said)
			}
		}
	})
}
