package tests

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// overloadFor is for how long the API server is overloaded while a client waits.
const overloadFor = 20 * time.Second

// The API server answers the instances and the plugin late, or refuses them. A cluster in use stays awake and keeps its session, and sleeps once it
// is idle and the API server answers again. A client of a sleeping cluster is held, and answered at its first attempt.
func TestAPIServerOverloaded(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	before := map[string]int32{}
	for _, replica := range s.replicas() {
		before[replica.Name] = restarts(replica)
	}
	for _, row := range []struct {
		rule    string
		behaves func(pass http.Handler) http.Handler
	}{
		{"it answers after five seconds", func(pass http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
				case <-time.After(5 * time.Second):
				}
				pass.ServeHTTP(w, r)
			})
		}},
		{"it answers 429", func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "1")
				http.Error(w, "too many requests", http.StatusTooManyRequests)
			})
		}},
	} {
		pod, replicas := s.instances(c)[0], s.replicas()
		session := s.open(c, "rw")
		s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		s.awaitMetric(pod.Name, fmt.Sprintf("cnpg_scale_to_zero_threshold_seconds{cluster=%q} %.0f", c.Name, threshold.Seconds()))
		restore := d.overloads(row.behaves, append(replicas, pod)...)
		s.awake(c, threshold, "active", row.rule+": an open session")
		s.must(session.Run("select 1"))
		session.Close()
		restore()
		s.fallsAsleep(c, row.rule+", and answers again")
		s.annotate(c, scenario.InactivityMinutes, never)

		restore = d.overloads(row.behaves, replicas...)
		began, answered := time.Now(), make(chan error, 1)
		go func() {
			_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
			t.Logf("%s: the client waited for %.1fs", row.rule, time.Since(began).Seconds())
			answered <- err
		}()
		pause(s.story, overloadFor)
		restore()
		if err := <-answered; err != nil {
			t.Errorf("%s: a client of the sleeping cluster: %v", row.rule, err)
		}
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.awaitSlices(c, between+toSettle)
		for _, replica := range s.replicas() {
			if restarts(replica) != before[replica.Name] {
				t.Errorf("%s: %s was restarted", row.rule, replica.Name)
			}
		}
	}
}

// overloads puts a proxy that behaves so between the API server and pods, among them the plugin's. The returned function removes it, and
// checks that the pods sent requests.
func (s *disturber) overloads(behaves func(pass http.Handler) http.Handler, pods ...corev1.Pod) (restore func()) {
	s.Helper()
	var asked atomic.Int64
	undo := s.standBetween(func(pass http.Handler) http.Handler {
		behaving := behaves(pass)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1); behaving.ServeHTTP(w, r) })
	}, pods...)
	return func() {
		s.Helper()
		if undo(); asked.Load() == 0 {
			s.Error("no pod has asked the API server")
		}
	}
}
