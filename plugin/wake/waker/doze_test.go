package waker

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestNext(t *testing.T) {
	t.Parallel()
	listed := plan.Cluster{Listed: true, Policy: idle.Policy{Enabled: true}}
	with := func(change func(*plan.Cluster)) plan.Cluster {
		cluster := listed
		change(&cluster)
		return cluster
	}
	dozing := with(func(c *plan.Cluster) { c.Fenced, c.Dozing = true, true })
	for _, row := range []struct {
		rule    string
		cluster plan.Cluster
		pods    int
		want    step
	}{
		{"an awake cluster's instance is awaited", listed, 1, stepAwaitInstance},
		{"where one is about to doze and nobody is passed on, the announcement is withdrawn", with(func(c *plan.Cluster) { c.Holding = true }), 1, stepWithdraw},
		{"also where the feature is off", plan.Cluster{Holding: true}, 1, stepWithdraw},
		{"a PostgreSQL that stops is waited for", dozing, 1, stepAwaitStopped},
		{"also where a person has lifted the fence", with(func(c *plan.Cluster) { c.MayStillStop = true }), 1, stepAwaitStopped},
		{"once it has stopped the fence is lifted", with(func(c *plan.Cluster) { c.Fenced, c.Dozing, c.Stopped = true, true, true }), 1, stepUnfence},
		{"also where there is no pod", with(func(c *plan.Cluster) { c.Fenced, c.Dozing, c.Stopped = true, true, true }), 0, stepUnfence},
		{"and where the plugin is not listed", plan.Cluster{Fenced: true, Dozing: true, Stopped: true}, 1, stepUnfence},
		{"and where only people wake it from hibernation", plan.Cluster{Listed: true, Policy: idle.Policy{Enabled: true, Manual: true}, Dozing: true, Stopped: true}, 1, stepUnfence},
		{"a Cluster that is being deleted is not woken", plan.Cluster{Deleting: true, Dozing: true, Stopped: true}, 1, stepGiveUp},
		{"a fenced cluster that hibernates has its pods deleted first", with(func(c *plan.Cluster) { c.Fenced, c.HibernationOn, c.OwnsHibernation = true, true, true }), 1, stepAwaitPodsDeleted},
		{"then hibernation is turned off", with(func(c *plan.Cluster) {
			c.Fenced, c.HibernationOn, c.OwnsHibernation, c.Hibernated = true, true, true, true
		}), 0, stepEndHibernation},
		{"unless a person turned it on", with(func(c *plan.Cluster) { c.Fenced, c.HibernationOn, c.Hibernated = true, true, true }), 0, stepGiveUp},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := next(row.cluster, row.pods); got != row.want {
				t.Errorf("got %d, want %d", got, row.want)
			}
		})
	}
}

// doze makes the cluster one whose PostgreSQL was stopped.
func doze(c *cnpgv1.Cluster) {
	awake(c)
	delete(c.Annotations, contract.AnnotationAsleepSince)
	delete(c.Annotations, contract.AnnotationAsleepReason)
	delete(c.Annotations, contract.AnnotationGatewayReady)
	c.Annotations[contract.AnnotationFencedInstances] = contract.FencedInstancesAll
	c.Annotations[contract.AnnotationDozingSince] = time.Now().Format(time.RFC3339)
	c.Annotations[contract.AnnotationPostgresStopped] = "pod-uid"
}

// stopping makes it one whose PostgreSQL has not stopped yet.
func stopping(c *cnpgv1.Cluster) {
	doze(c)
	delete(c.Annotations, contract.AnnotationPostgresStopped)
}

// holding makes it one that is about to doze, and whose clients are not passed on.
func holding(c *cnpgv1.Cluster) {
	awake(c)
	announcement := contract.Announcement{PodUID: "pod-uid", Deadline: time.Now().Add(20 * time.Second), Doze: true}.String()
	for _, key := range []string{contract.AnnotationAnnounced, contract.AnnotationGatewayReady, contract.AnnotationGatewayHolding} {
		c.Annotations[key] = announcement
	}
}

// manage acts as the instance manager of a fenced instance: once the fence is gone PostgreSQL accepts sessions, a moment later.
func (w *world) manage() {
	for w.t.Context().Err() == nil {
		notified := w.notifier.Listen(types.NamespacedName{Namespace: namespace, Name: name})
		if w.read().Annotations[contract.AnnotationFencedInstances] == "" {
			time.Sleep(200 * time.Millisecond) // the bubble's clock
			w.postgres.Store(true)
			return
		}
		select {
		case <-w.t.Context().Done():
		case <-notified:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (w *world) read() *cnpgv1.Cluster {
	var cluster cnpgv1.Cluster
	if err := w.api.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: name}, &cluster); err != nil {
		w.t.Error(err)
	}
	return &cluster
}

func TestResolve_doze(t *testing.T) {
	t.Parallel()
	runs := func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) }
	rests := func(w *world) { w.pod("orders-1", "10.0.0.1", same); go w.manage() }
	stopped := func(w *world) {
		w.postgres.Store(false)
		w.change(func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationPostgresStopped] = "pod-uid" })
	}
	for _, row := range []struct {
		rule    string
		cluster func(*cnpgv1.Cluster)
		before  func(*world) // before the client connects
		later   func(*world) // a second after that
		err     error
		took    time.Duration // at most
		left    []string      // of the annotations
		result  []Result
	}{
		{"a dozing cluster is woken", doze, rests, nil, nil, 250 * time.Millisecond, []string{contract.AnnotationLastWake}, []Result{ResultSuccess}},
		{"nobody is passed to a PostgreSQL that is about to stop", stopping, func(w *world) { w.postgres.Store(true); rests(w) }, stopped, nil, 1250 * time.Millisecond,
			[]string{contract.AnnotationLastWake}, []Result{ResultSuccess}},
		{"nor if a person has lifted the fence", func(c *cnpgv1.Cluster) { stopping(c); delete(c.Annotations, contract.AnnotationFencedInstances) }, runs,
			func(w *world) {
				w.change(func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationDozingSince) })
				w.endpoint("orders-rw", "10.0.0.1")
			}, nil, 2050 * time.Millisecond, nil, nil},
		{"nobody is passed on before somebody says that it has stopped, however long that takes", stopping, runs, nil, gateway.ErrTimeout, 5 * time.Minute,
			[]string{contract.AnnotationFencedInstances, contract.AnnotationDozingSince}, []Result{ResultTimeout}},
		{"what would keep it hibernated does not keep it dozing", func(c *cnpgv1.Cluster) {
			doze(c)
			c.Annotations[contract.AnnotationEnabled] = "false"
			c.Spec.Plugins = nil
			maintained(c)
		}, rests, nil,
			nil, 250 * time.Millisecond, []string{contract.AnnotationLastWake}, []Result{ResultSuccess}},
		{"a person's fence stays", doze, func(w *world) { w.manager.Store("kubectl-cnpg"); rests(w) }, nil, gateway.ErrTimeout, 5 * time.Minute,
			[]string{contract.AnnotationFencedInstances, contract.AnnotationDozingSince, contract.AnnotationPostgresStopped}, []Result{ResultTimeout}},
		{"what changes meanwhile is read again", doze, func(w *world) { w.conflict.Store(2); rests(w) }, nil, nil, 250 * time.Millisecond,
			[]string{contract.AnnotationLastWake}, []Result{ResultSuccess}},
		{"an announcement for which everybody is held is withdrawn", holding, runs, nil, nil, 50 * time.Millisecond, nil, nil},
		{"one that became a doze meanwhile is woken from it", holding, func(w *world) {
			w.interfere = func(c *cnpgv1.Cluster) { stopping(c); w.postgres.Store(false) }
			w.conflict.Store(1)
			runs(w)
		}, func(w *world) { stopped(w); w.manage() }, nil, 1250 * time.Millisecond, []string{contract.AnnotationLastWake}, []Result{ResultSuccess}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 5*time.Minute, row.cluster)
				row.before(w)
				if row.later != nil {
					w.later(time.Second, func() { row.later(w) })
				}
				began := time.Now()
				got, err := w.waker.Resolve(t.Context(), service("-rw"), by)
				if !errors.Is(err, row.err) || row.err == nil && got != primary {
					t.Errorf("got %s, %v, want %v", got, err, row.err)
				}
				if took := time.Since(began); took > row.took {
					t.Errorf("it took %s, want %s at most", took, row.took)
				}
				synctest.Wait()
				_, results, _, _ := w.seen()
				if diff := cmp.Diff(row.result, results); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
				annotations := w.read().Annotations
				for _, key := range []string{contract.AnnotationEnabled, "team", contract.AnnotationAsleepSince, contract.AnnotationAsleepReason} {
					delete(annotations, key)
				}
				slices.Sort(row.left)
				if diff := cmp.Diff(row.left, slices.Sorted(maps.Keys(annotations))); diff != "" {
					t.Errorf("annotations (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestResolve_saysThatTheClusterDozed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, doze)
		w.pod("orders-1", "10.0.0.1", same)
		go w.manage()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
			t.Fatal(err)
		}
		messages := w.woken()
		if len(messages) != 1 || !strings.HasPrefix(messages[0], `Woken from a doze by 10.1.2.3 (user "app", database "shop") through Service orders-rw in 2`) ||
			!strings.Contains(messages[0], "ms: PostgreSQL had stopped after 0s, the fence was lifted 0s later, PostgreSQL accepted sessions 2") {
			t.Errorf("events: %v", messages)
		}
		if diff := cmp.Diff([]Depth{DepthDoze}, w.depths); diff != "" {
			t.Errorf("depths (-want +got):\n%s", diff)
		}
		last, err := contract.ParseLastWake(w.read().Annotations[contract.AnnotationLastWake])
		if err != nil || last.Depth != contract.DepthDoze || last.Since != "" {
			t.Errorf("last-wake says %+v, %v", last, err)
		}
	})
}

// A wake from a doze schedules no pod, so that no budget limits it.
func TestResolve_dozeNeedsNoBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, doze)
		w.waker.Budget.took(gateway.SourceOf(by.Peer.Addr()), sourceBurst+sharedBurst, time.Now())
		w.pod("orders-1", "10.0.0.1", same)
		go w.manage()
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// A session that PostgreSQL accepted before it was stopped says nothing of the one that is started.
func TestResolve_forgetsWhatAStoppedPostgreSQLAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		w.pod("orders-1", "10.0.0.1", same)
		probe, first := w.waker.Probe, true
		w.waker.Probe = func(ctx context.Context, instance netip.AddrPort) bool {
			if first { // an answer of before that comes late
				first = false
				w.change(stopping)                 //nolint:contextcheck // somebody else's change
				time.Sleep(500 * time.Millisecond) // the bubble's clock
				return true
			}
			return probe(ctx, instance)
		}
		w.later(time.Second, func() { w.change(doze); w.manage() })
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil || time.Since(began) < 1200*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// begin resolves until a session may begin, as the gateway does.
func (w *world) begin() (netip.AddrPort, error) {
	for {
		got, err := w.waker.Resolve(w.t.Context(), service("-rw"), by)
		if err != nil || w.waker.MayBegin(w.t.Context(), service("-rw")) {
			return got, err
		}
		time.Sleep(time.Second) // the bubble's clock
	}
}

// slow is an API server that answers the first list late.
type slow struct {
	client.Reader
	once      *sync.Once
	meanwhile func()
}

func (s slow) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	s.once.Do(s.meanwhile)
	return s.Reader.List(ctx, list, options...)
}

// Admitting a client may take a while, during which PostgreSQL may begin to stop.
func TestMayBegin_passesNobodyOnWhoWasAdmittedTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		w.runs()
		w.isolated(map[string]string{"app": "web"})
		w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		w.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", Labels: map[string]string{"app": "web"}},
			Status:     corev1.PodStatus{PodIP: "10.1.2.3"},
		})
		w.waker.APIReader = slow{w.api, &sync.Once{}, func() {
			time.Sleep(4 * time.Second) // the bubble's clock
			w.change(stopping)
		}}
		w.later(6*time.Second, func() { w.postgres.Store(false); w.change(doze); w.manage() })
		began := time.Now()
		got, err := w.begin()
		if took := time.Since(began); err != nil || got != primary || took < 6*time.Second {
			t.Errorf("got %s, %v after %s", got, err, took)
		}
	})
}

// ahead is an API server that knows more of the Cluster than the informers, or does not answer, for three seconds.
type ahead struct {
	client.Reader
	until  time.Time
	change func(*cnpgv1.Cluster) error
}

func (a ahead) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := a.Reader.Get(ctx, key, o, options...)
	if cluster, ok := o.(*cnpgv1.Cluster); ok && time.Now().Before(a.until) {
		return errors.Join(a.change(cluster), ctx.Err())
	}
	return err
}

// Another replica says that all clients are held, and the informers of this one may be late.
func TestMayBegin_passesNobodyOnWhomAnotherReplicaHolds(t *testing.T) {
	t.Parallel()
	announced := func(c *cnpgv1.Cluster) { holding(c); delete(c.Annotations, contract.AnnotationGatewayHolding) }
	for _, row := range []struct {
		rule    string
		cluster func(*cnpgv1.Cluster)
		change  func(*cnpgv1.Cluster) error
		held    bool
	}{
		{"all clients are held for a doze", announced, func(c *cnpgv1.Cluster) error { holding(c); return nil }, true},
		{"PostgreSQL may be stopping by now", announced, func(c *cnpgv1.Cluster) error {
			stopping(c)
			delete(c.Annotations, contract.AnnotationFencedInstances)
			return nil
		}, true},
		{"the API server does not answer", announced, func(*cnpgv1.Cluster) error { return errors.New("away") }, true},
		{"the API server answers too late", announced, func(*cnpgv1.Cluster) error {
			time.Sleep(2 * holdsWithin) // the bubble's clock
			return nil
		}, true},
		{"the doze is only announced", announced, func(*cnpgv1.Cluster) error { return nil }, false},
		{"without an announcement the API server is not asked", awake, func(*cnpgv1.Cluster) error { return errors.New("asked") }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, row.cluster)
				w.runs()
				began := time.Now()
				w.waker.APIReader = ahead{w.api, began.Add(3 * time.Second), row.change}
				got, err := w.begin()
				if took := time.Since(began); err != nil || got != primary || row.held != (took >= 3*time.Second) || took > 5*time.Second {
					t.Errorf("got %s, %v after %s", got, err, took)
				}
			})
		})
	}
}

// A client that has to connect again waits until that leads past the gateway, however long the gateway stands in.
func TestAwaitDirect_dozesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		w.runs()
		w.isolated(map[string]string{"app": "api"})
		w.create(routed())
		w.later(time.Second, func() { w.postgres.Store(false); w.change(doze); w.manage() })
		w.later(20*time.Second, func() {
			if err := w.api.Delete(w.t.Context(), routed()); err != nil {
				w.t.Error(err)
			}
		})
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); !errors.Is(err, gateway.ErrReconnect) || time.Since(began) < 22*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if annotations := w.read().Annotations; annotations[contract.AnnotationFencedInstances] != "" {
			t.Error("the cluster still dozes")
		}
	})
}

func TestRunning_dozing(t *testing.T) {
	t.Parallel()
	for rule, state := range map[string]func(*cnpgv1.Cluster){"dozing": doze, "stopping": stopping, "about to": holding} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, time.Minute, state)
			w.pod("orders-1", "10.0.0.1", ready)
			if got := w.waker.Running(t.Context(), service("-rw")); len(got) != 0 {
				t.Errorf("%v are said to accept sessions", got)
			}
		})
	}
}

func TestChanges_ofAHibernatedDoze(t *testing.T) {
	t.Parallel()
	for fenced, want := range map[bool]bool{true: true, false: false} {
		_, got := changes(stepEndHibernation, fenced, "x")[contract.AnnotationFencedInstances]
		if got != want {
			t.Errorf("a fence that is ours (%t) is removed: %t", fenced, got)
		}
	}
	if _, there := changes(stepUnfence, true, "x")[contract.AnnotationHibernation]; there {
		t.Error("the hibernation annotation is touched")
	}
}
