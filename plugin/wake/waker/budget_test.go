package waker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func source(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i%250 + 1)}) }

func clusterNumber(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: fmt.Sprint(i)}
}

// took returns how many of the wakes one source may begin at a time.
func (b *Budget) took(from netip.Addr, wakes int, now time.Time) int {
	taken := 0
	for i := range wakes {
		if b.Take(from, clusterNumber(i), now) {
			taken++
		}
	}
	return taken
}

func TestBudget_promises(t *testing.T) {
	t.Parallel()
	const whole = sourceBurst + sharedBurst
	for _, row := range []struct {
		rule string
		play func(*Budget) int
		want int
	}{
		{"500 clusters are woken at once for one source", func(b *Budget) int { return b.took(source(0), 500, noon) }, 500},
		{"a source that wakes everything gets its own and the shared budget", func(b *Budget) int { return b.took(source(0), 9500, noon) }, whole},
		{"and one more each second, and its own", func(b *Budget) int {
			b.took(source(0), 9500, noon)
			return b.took(source(0), 9500, noon.Add(time.Minute))
		}, 60 + 6},
		{"another source has a budget of its own", func(b *Budget) int {
			b.took(source(0), 9500, noon)
			return b.took(source(1), 9500, noon)
		}, sourceBurst},
		{"ten sources share what is shared", func(b *Budget) int {
			taken := 0
			for i := range 10 {
				taken += b.took(source(i), 9500, noon)
			}
			return taken
		}, 10*sourceBurst + sharedBurst},
		{"nothing used grows beyond the burst", func(b *Budget) int {
			b.took(source(0), 1, noon)
			return b.took(source(0), 9500, noon.Add(24*time.Hour))
		}, whole},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := row.play(NewBudget(0, 0, 0)); got != row.want {
				t.Errorf("%d wakes begin, want %d", got, row.want)
			}
		})
	}
}

// TestBudget_servesSourcesInTurn lets sources with many and with few requests wait for one wake a second.
func TestBudget_servesSourcesInTurn(t *testing.T) {
	t.Parallel()
	b := NewBudget(0, 0, 0)
	b.took(source(9), 9500, noon)
	for i := range 3 {
		b.took(source(i), sourceBurst, noon)
	}
	for c := range sharedBurst { // source 9 no longer asks
		b.Leave(source(9), clusterNumber(c+sourceBurst))
	}
	b.accounts[source(9)].waiting = map[types.NamespacedName]time.Time{}
	served := map[int]int{}
	for second := 1; second <= 9; second++ {
		now := noon.Add(time.Duration(second) * time.Second)
		for round := range 2 { // the first round queues them
			for i, wishes := range []int{100, 10, 1} {
				for c := range wishes {
					if b.Take(source(i), clusterNumber(1000*i+c), now) && round < 2 {
						served[i]++
					}
				}
			}
		}
	}
	if diff := cmp.Diff(map[int]int{0: 3, 1: 3, 2: 3}, served); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
}

// TestBudget_neverExceedsItsRates lets many sources ask at random for an hour.
func TestBudget_neverExceedsItsRates(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 0)) // a test that can be repeated
	b := NewBudget(0, 0, 0)
	taken, all := map[int]int{}, 0
	for second := range 3600 {
		now := noon.Add(time.Duration(second) * time.Second)
		for range random.IntN(20) {
			i := random.IntN(5)
			if b.Take(source(i), clusterNumber(random.IntN(100)), now) {
				taken[i]++
				all++
			}
		}
		own := sourceBurst + 1 + second*sourceBurst/int(sourceRefill.Seconds())
		if most := 5*own + sharedBurst + second + 1; all > most {
			t.Fatalf("after %d s %d wakes have begun, want at most %d", second, all, most)
		}
	}
	b.Take(source(100), clusterNumber(0), noon.Add(2*time.Hour))
	if len(b.accounts) != 1 {
		t.Errorf("%d accounts are kept", len(b.accounts))
	}
}

func TestResolve_waitsForTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		go w.operate()
		b := w.waker.Budget
		from := gateway.SourceOf(by.Peer.Addr())
		b.took(from, 9500, time.Now())
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < sharedEvery {
			t.Errorf("it took %s only", took)
		}
		if messages := w.woken(); len(messages) != 1 || !strings.Contains(messages[0], "deleted every pod after 0s, the wake waited 1s until one of its clients was allowed to wake the cluster, the hibernation annotation was off 0s later") {
			t.Errorf("Events: %v", messages)
		}
		_, _, _, events := w.seen()
		if len(events) != 1 || !strings.Contains(events[0], "WakeQueued") || !strings.Contains(events[0], "10.1.2.3") {
			t.Errorf("Events: %v", events)
		}
		if diff := cmp.Diff([]int{1, -1}, w.queued); diff != "" {
			t.Errorf("queued (-want +got):\n%s", diff)
		}
	})
}

// A wake that the API server rejects, for example because the operator's webhook is down, is retried and still counts as one
// wake.
func TestResolve_takesOneWakeFromTheBudgetHoweverOftenItIsTried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		go w.operate()
		api, _ := w.api.(client.WithWatch)
		began := time.Now()
		w.waker.Client = interceptor.NewClient(api, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
				if time.Since(began) < 30*time.Second {
					return errors.New("the webhook does not answer")
				}
				return c.Patch(ctx, o, patch, options...)
			},
		})
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
			t.Fatal(err)
		}
		if !w.waker.Budget.shared.empties.IsZero() {
			t.Error("one wake took from the budget of all sources")
		}
		if left := w.waker.Budget.took(gateway.SourceOf(by.Peer.Addr()), sourceBurst, time.Now()); left != sourceBurst {
			t.Errorf("%d wakes are left of the address's budget, want %d", left, sourceBurst)
		}
		if messages := w.woken(); len(messages) != 1 || !strings.Contains(messages[0], "deleted every pod after 0s, the hibernation annotation was off 30s later") {
			t.Errorf("Events: %v", messages)
		}
	})
}

// A pool of writers and one of readers wake their cluster together.
func TestResolve_takesOneWakeFromTheBudgetThroughHoweverManyServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		go w.operate()
		readers := gateway.Client{Peer: netip.MustParseAddrPort("10.9.9.9:4711")}
		var clients sync.WaitGroup
		for suffix, client := range map[string]gateway.Client{"-rw": by, "-r": readers} {
			clients.Go(func() {
				if _, err := w.waker.Resolve(t.Context(), service(suffix), client); err != nil {
					t.Errorf("%s: %v", suffix, err)
				}
			})
		}
		clients.Wait()
		left := 0
		for _, client := range []gateway.Client{by, readers} {
			left += w.waker.Budget.took(gateway.SourceOf(client.Peer.Addr()), sourceBurst, w.began)
		}
		if used := 3*sourceBurst + sharedBurst - w.waker.Budget.took(source(0), 9500, w.began) - left; used != 1 {
			t.Errorf("one wake took %d from the budget", used)
		}
		synctest.Wait()
		if kept := len(w.waker.ongoing.Keys()); kept != 0 {
			t.Errorf("%d clusters are kept", kept)
		}
	})
}

func TestMayWake_asksTheBudgetOnceForAWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		defer w.waker.searches.add(service("-rw").UID, by)()
		search := func() *wake { return &wake{Waker: w.waker, service: service("-rw"), depth: DepthHibernation} }
		left := sourceBurst + sharedBurst
		for _, row := range []struct {
			rule, version string
			woken, asks   bool
		}{
			{"the search that wakes the cluster asks, and leaves when it has", "7", true, true},
			{"one that has seen the cluster before that wake does not ask", "7", false, false},
			{"one that sees the next sleep asks", "8", false, true},
		} {
			asking, cluster := search(), &cnpgv1.Cluster{}
			cluster.ResourceVersion = row.version
			if _, err := asking.mayWake(cluster, time.Now()); err != nil {
				t.Errorf("%s: %v", row.rule, err)
			}
			if row.woken {
				asking.wrote("", cluster.ResourceVersion)
			}
			asking.leaveQueue()
			if row.asks {
				left--
			}
		}
		if took := w.waker.Budget.took(gateway.SourceOf(by.Peer.Addr()), 9500, time.Now()); took != left {
			t.Errorf("%d wakes are left, want %d", took, left)
		}
	})
}

// A granted wake does not wait any more, however long PostgreSQL takes.
func TestResolve_leavesTheQueueWhenItMayWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		w.waker.Budget.took(gateway.SourceOf(by.Peer.Addr()), 9500, time.Now())
		_, err := w.waker.Resolve(t.Context(), service("-rw"), by) // there is no operator
		if !errors.Is(err, gateway.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]time.Duration{0, time.Second}, w.queuedAt); diff != "" {
			t.Errorf("queued, and no more, after (-want +got):\n%s", diff)
		}
	})
}

// A fleet of ten thousand whose clients come from few addresses is woken by two replicas within five minutes, unless set otherwise.
func TestBudget_growsWithTheFleet(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule                          string
		source, burst, rate, clusters int
		want, each                    int
	}{
		{"a small fleet", 0, 0, 0, 100, 10 + 500, 1},
		{"a large one", 0, 0, 0, 100_000, 500 + 5000, 5 + 166},
		{"as set, whatever the fleet", 200, 7, 3, 100_000, 200 + 7, 2 + 3},
	} {
		b := NewBudget(row.source, row.burst, row.rate)
		b.SetFleet(row.clusters)
		now, source := noon, gateway.SourceOf(by.Peer.Addr())
		if got := b.took(source, 2*row.want, now); got != row.want {
			t.Errorf("%s: %d at once, want %d", row.rule, got, row.want)
		}
		if got := b.took(source, 2*row.each, now.Add(time.Second)); got != row.each {
			t.Errorf("%s: %d more a second, want %d", row.rule, got, row.each)
		}
	}
}

// A client does not wait for the budget of another client of the same cluster.
func TestResolve_wakesForWhoeverMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		go w.operate()
		w.waker.Budget.took(gateway.SourceOf(by.Peer.Addr()), 9500, time.Now())
		w.waker.Budget.shared.empties = time.Now().Add(time.Hour)
		greedy, leave := context.WithCancel(t.Context())
		defer leave()
		go func() { _, _ = w.waker.Resolve(greedy, service("-rw"), by) }()
		synctest.Wait()
		honest := gateway.Client{Peer: netip.MustParseAddrPort("10.9.9.9:4711"), User: "honest"}
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), honest); err != nil {
			t.Fatal(err)
		}
		if messages := w.woken(); len(messages) != 1 || !strings.HasPrefix(messages[0], `Woken by 10.9.9.9 (user "honest"`) {
			t.Errorf("Events: %v", messages)
		}
	})
}

// wokenInVain returns a cluster that is asleep again after the second unused wake in a row by a client at fd00::1.
func wokenInVain(t *testing.T, suffix string) func(*cnpgv1.Cluster) {
	t.Helper()
	return func(c *cnpgv1.Cluster) {
		last, err := contract.LastWake{At: time.Now().Add(-time.Minute), By: "fd00::1", Service: "orders-rw", Unused: 1}.Encode()
		if err != nil {
			t.Error(err)
		}
		c.Annotations[contract.AnnotationLastWake] = last
		c.Annotations[contract.AnnotationAsleepReason] = contract.AsleepReasonUnusedPrefix + "it was woken" + suffix
		c.Annotations[contract.AnnotationAsleepSince] = time.Now().Format(time.RFC3339)
	}
}

// Behind one address, which may be a NAT's, a client that has left keeps out nobody who stays.
func TestResolve_wakesForWhoStaysAtTheSourceOfAnUnusedWake(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, suffix, peer string
		after              time.Duration
	}{
		{"a client of another source waits for nothing", "", "10.0.0.9:4711", 0},
		{"a client of the same address wakes it once it has stayed for some seconds", "", "[fd00::1]:4711", patience},
		{"and so does its neighbour in the /64, which is the same source", "", "[fd00::2]:4711", patience},
		{"but not if the one that woke it stays too, and is ignored", contract.AsleepReasonIgnoredSuffix, "[fd00::2]:4711", 2 * time.Minute},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 10*time.Minute, wokenInVain(t, row.suffix))
				go w.operate()
				scans, stop := context.WithCancel(t.Context())
				stopped := make(chan struct{})
				defer func() { stop(); <-stopped }()
				go func() { // it comes again and again, and never stays
					defer close(stopped)
					for scans.Err() == nil {
						scan, leave := context.WithTimeout(scans, 2*time.Second)
						_, _ = w.waker.Resolve(scan, service("-rw"), gateway.Client{Peer: netip.MustParseAddrPort("[fd00::1]:4000")})
						leave()
						time.Sleep(100 * time.Millisecond) // of the bubble's
					}
				}()
				synctest.Wait()
				client, began := gateway.Client{Peer: netip.MustParseAddrPort(row.peer)}, time.Now()
				if _, err := w.waker.Resolve(t.Context(), service("-rw"), client); err != nil {
					t.Fatal(err)
				}
				woke := w.wokenAfter(t, began)
				if woke < row.after || woke > row.after+askBudgetEvery {
					t.Errorf("woken after %s, want %s", woke, row.after)
				}
			})
		})
	}
}

// wokenAfter returns how long after a time the newest wake began.
func (w *world) wokenAfter(t *testing.T, began time.Time) time.Duration {
	t.Helper()
	var cluster cnpgv1.Cluster
	if err := w.waker.APIReader.Get(t.Context(), clusterOf(service("-rw")), &cluster); err != nil {
		t.Fatal(err)
	}
	wake, err := contract.ParseLastWake(cluster.Annotations[contract.AnnotationLastWake])
	if err != nil {
		t.Fatal(err)
	}
	return wake.At.Sub(began)
}

// The wakes of one source that nobody uses are counted, until one is used or another source wakes the cluster.
func TestLastWake_countsUnusedWakes(t *testing.T) {
	t.Parallel()
	cluster := &cnpgv1.Cluster{}
	cluster.Annotations = map[string]string{}
	wokenInVain(t, "")(cluster)
	for _, row := range []struct {
		rule, peer, reason string
		want               int
	}{
		{"the third in a row", "[fd00::1]:1", cluster.Annotations[contract.AnnotationAsleepReason], 2},
		{"by the same source", "[fd00::2]:1", cluster.Annotations[contract.AnnotationAsleepReason], 2},
		{"not by another", "10.0.0.9:1", cluster.Annotations[contract.AnnotationAsleepReason], 0},
		{"nor once one was used", "[fd00::1]:1", "idle since x", 0},
	} {
		cluster := cluster.DeepCopy()
		cluster.Annotations[contract.AnnotationAsleepReason] = row.reason
		value, err := lastWake(cluster, service("-rw"), gateway.Client{Peer: netip.MustParseAddrPort(row.peer)}, stepEndHibernation, false)
		if err != nil {
			t.Fatal(err)
		}
		if wake, err := contract.ParseLastWake(value); err != nil || wake.Unused != row.want {
			t.Errorf("%s: %s, %v", row.rule, value, err)
		}
	}
}

// A waiting wake ends with its last client, because nobody would use it.
func TestResolve_wakesNothingForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		w.waker.Budget.took(gateway.SourceOf(by.Peer.Addr()), 9500, time.Now())
		w.waker.Budget.shared.empties = time.Now().Add(time.Hour)
		impatient, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer leave()
		if _, err := w.waker.Resolve(impatient, service("-rw"), by); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Hour) // of the bubble's
		if patches, _, _, _ := w.seen(); len(patches) != 0 {
			t.Errorf("patches: %v", patches)
		}
		if len(w.waker.searches.Keys()) != 0 {
			t.Error("somebody is left waiting")
		}
	})
}

// Nothing behind the Service ever accepts a client, who leaves, and the cluster sleeps again. The search goes on.
func TestResolve_wakesNothingAgainForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 30*time.Minute, func(*cnpgv1.Cluster) {})
		w.waker.Probe = func(context.Context, netip.AddrPort) bool { return false }
		go w.operate()
		impatient, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		if _, err := w.waker.Resolve(impatient, service("-rw"), by); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "orders-1"}}
		if err := w.api.Delete(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		w.change(func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationHibernation] = "on"
			hibernated(c)
		})
		time.Sleep(time.Hour) // of the bubble's
		patches, results, _, events := w.seen()
		if len(patches) != 1 || len(results) != 1 || results[0] != ResultTimeout || !strings.Contains(strings.Join(events, ""), "WakeTimedOut") {
			t.Errorf("patches: %v, results: %v, Events: %v", patches, results, events)
		}
		if len(w.waker.searches.Keys()) != 0 {
			t.Error("a search is left")
		}
	})
}

// An application connects again and again, as clients do that give up after ten seconds.
func TestResolve_timesOutWhileClientsKeepComing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, tries = 5 * time.Minute, 240
		w := newWorld(t, limit, func(*cnpgv1.Cluster) {})
		w.waker.Probe = func(context.Context, netip.AddrPort) bool { return false }
		go w.operate()
		began := time.Now()
		for range tries {
			impatient, leave := context.WithTimeout(t.Context(), 10*time.Second)
			if _, err := w.waker.Resolve(impatient, service("-rw"), by); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			leave()
			time.Sleep(5 * time.Second)
		}
		lasted := time.Since(began)
		time.Sleep(time.Hour)
		if _, results, _, _ := w.seen(); len(results) != int(lasted/limit) || slices.ContainsFunc(results, func(r Result) bool { return r != ResultTimeout }) {
			t.Errorf("in %s the results are %v", lasted, results)
		}
	})
}

func TestResolve_outlivesAPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		w.pod("orders-1", "10.0.0.1", same)
		w.waker.Probe = func(context.Context, netip.AddrPort) bool { panic("a mistake of ours") }
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); !errors.Is(err, errPanicked) {
			t.Errorf("got %v", err)
		}
	})
}

func TestNotBefore_isForWhoWokeItInVain(t *testing.T) {
	t.Parallel()
	unused := contract.AsleepReasonUnusedPrefix + "it was woken"
	const last, again = `{"at":"2026-03-01T12:00:00Z","by":"10.0.0.9","user":"mon","service":"orders-rw"}`,
		`{"at":"2026-03-01T12:00:00Z","by":"10.0.0.9","service":"orders-rw","unused":1}`
	for _, row := range []struct {
		rule, reason, last, since, address string
		want                               time.Time
	}{
		{"twice as long after the second in a row", unused, again, "2026-03-01T12:01:10Z", "10.0.0.9", noon.Add(210 * time.Second)},
		{"but five minutes at most, however many there were", unused, strings.Replace(again, ":1}", ":999999999}", 1), "2026-03-01T12:00:00Z", "10.0.0.9", noon.Add(5 * time.Minute)},
		{"and nothing if the count is nonsense", unused, strings.Replace(again, ":1}", ":-7}", 1), "2026-03-01T12:01:10Z", "10.0.0.9", noon.Add(140 * time.Second)},
		{"who woke it in vain waits for as long as it was up", unused, last, "2026-03-01T12:01:10Z", "10.0.0.9", noon.Add(140 * time.Second)},
		{"but five minutes at most", unused, last, "2026-03-01T18:00:00Z", "10.0.0.9", noon.Add(6*time.Hour + 5*time.Minute)},
		{"by IPv4 on a socket for both families too", unused, last, "2026-03-01T12:01:10Z", "::ffff:10.0.0.9", noon.Add(140 * time.Second)},
		{"another does not", unused, last, "2026-03-01T12:01:10Z", "10.0.0.8", time.Time{}},
		{"nor does anybody once it was used", "idle since x", last, "2026-03-01T12:01:10Z", "10.0.0.9", time.Time{}},
		{"nor if a person wrote nonsense", unused, "x", "2026-03-01T12:01:10Z", "10.0.0.9", time.Time{}},
		{"nor without a time", unused, last, "x", "10.0.0.9", time.Time{}},
		{"nor if the wake is later than the sleep", unused, last, "2026-03-01T11:00:00Z", "10.0.0.9", time.Time{}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := &cnpgv1.Cluster{}
			cluster.Annotations = map[string]string{
				contract.AnnotationAsleepReason: row.reason, contract.AnnotationLastWake: row.last, contract.AnnotationAsleepSince: row.since,
			}
			client := waiting{gateway.Client{Peer: netip.AddrPortFrom(netip.MustParseAddr(row.address), 1)}, noon.Add(24 * time.Hour)}
			if got := notBefore(cluster, client); !got.Equal(row.want) {
				t.Errorf("not before %s, want %s", got, row.want)
			}
			if client.User = "app"; row.last == last && !notBefore(cluster, client).IsZero() {
				t.Error("another user must wait too")
			}
			if client.User = "mon"; row.last == last && !notBefore(cluster, client).Equal(row.want) {
				t.Error("the same user need not wait")
			}
		})
	}
}

// Wakes for clients that come within seconds of the sleep are counted, until one is for a client that comes later.
func TestLastWake_countsClientsThatReturnAtOnce(t *testing.T) {
	t.Parallel()
	const second = `{"at":"2026-03-01T11:50:00Z","by":"10.0.0.9","service":"orders-rw","returns":2}`
	for _, row := range []struct {
		rule, last, asleep, dozing string
		since                      time.Duration
		want                       int
	}{
		{"the first", "", "2026-03-01T12:00:00Z", "", 9 * time.Second, 1},
		{"the third in a row", second, "2026-03-01T12:00:00Z", "", time.Second, 3},
		{"one that has waited since before the sleep", second, "2026-03-01T12:00:00Z", "", -time.Second, 3},
		{"one that comes later ends the row", second, "2026-03-01T12:00:00Z", "", 10 * time.Second, 0},
		{"a doze is a sleep too", second, "", "2026-03-01T12:00:00Z", time.Second, 3},
		{"nonsense is no time", second, "x", "", time.Second, 0},
	} {
		cluster := &cnpgv1.Cluster{}
		cluster.Annotations = map[string]string{
			contract.AnnotationLastWake: row.last, contract.AnnotationAsleepSince: row.asleep, contract.AnnotationDozingSince: row.dozing,
		}
		value, err := lastWake(cluster, service("-rw"), by, stepEndHibernation, returned(cluster, noon.Add(row.since)))
		if err != nil {
			t.Fatal(err)
		}
		if wake, err := contract.ParseLastWake(value); err != nil || wake.Returns != row.want || wake.Since != row.asleep {
			t.Errorf("%s: %s, %v", row.rule, value, err)
		}
	}
}
