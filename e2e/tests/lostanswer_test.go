package tests

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// Hibernation is turned on, but the answer is lost: going to sleep continues all the same. The schedules stay suspended, idle
// sessions are terminated, and after the wake the schedules are resumed. LOST_ANSWERS is the number of repetitions.
func TestHandover_aLostAnswerUndoesNothing(t *testing.T) {
	t.Parallel()
	s := begin(t)
	interceptor := s.intercept() // the API server learns of it while the cluster is made
	c := s.running(kube.NewCluster(s.namespace, "cut", 1, never))
	s.annotate(c, scenario.Activity, "queries")
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	for range repeats(t, "LOST_ANSWERS", 1) {
		var losing atomic.Bool
		restore := s.standBetween(losesAnswer(&losing, "/clusters/"+c.Name), s.instances(c)[0])
		session := s.open(c, "rw")
		held, release := interceptor.Hold(func(change scenario.Change) bool {
			if !turnsHibernationOn(change) {
				return false
			}
			losing.Store(true)
			return true
		})
		release() // the sidecar would not wait for a change that is held for long
		s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		s.held(held)
		_, err := kube.AwaitCluster(s.ctx, c, "hibernated", toSettle, scenario.HibernationOn)
		s.must(err)
		undone := s.watchResumed(schedule)
		s.hibernated(c) // a shutdown would wait for an idle session that is not terminated
		if undone() {
			t.Error("the schedule was resumed while the cluster fell asleep")
		}
		session.Close()
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
		if _, marked := schedule.Annotations[scenario.Suspended]; !suspended(schedule) || !marked {
			t.Errorf("asleep, the schedule is suspended %t and marked %t", suspended(schedule), marked)
		}
		s.annotate(c, scenario.InactivityMinutes, never)
		s.wake(c)
		s.resumed(schedule)
		restore()
		if losing.Load() {
			t.Error("no answer was lost")
		}
	}
}

// losesAnswer passes every request on. Once it is losing, it loses the answer to the next patch of the object at the end of that path.
func losesAnswer(losing *atomic.Bool, path string) func(http.Handler) http.Handler {
	return func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, path) {
				pass.ServeHTTP(w, r)
				return
			}
			answer := httptest.NewRecorder()
			pass.ServeHTTP(answer, r)
			if losing.Swap(false) {
				panic(http.ErrAbortHandler)
			}
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		})
	}
}

// standBetween puts a proxy that behaves so between pods and the API server until the returned function is called, or the test ends.
func (s *story) standBetween(behaves func(pass http.Handler) http.Handler, pods ...corev1.Pod) (restore func()) {
	s.Helper()
	var processes []int
	for _, pod := range pods {
		processes = append(processes, scenario.Processes(scenario.IsPause, string(pod.UID))...)
	}
	undo, err := kube.StandBetween(s.ctx, processes, behaves)
	if errors.Is(err, scenario.ErrNotHere) || len(processes) != len(pods) {
		s.unseen()
	}
	s.must(err)
	restore = sync.OnceFunc(func() {
		if err := undo(); err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(restore)
	return restore
}

// watchResumed watches a suspended schedule until the returned function is called, which reports whether it was resumed.
func (s *story) watchResumed(schedule *cnpgv1.ScheduledBackup) func() bool {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
	ctx, stop := context.WithCancel(s.ctx)
	watched, resumed := schedule.DeepCopy(), make(chan bool, 1)
	go func() {
		_, err := scenario.Await(ctx, kube, watched, "resumed", toHealthy, func(b *cnpgv1.ScheduledBackup) bool { return !suspended(b) })
		resumed <- err == nil
	}()
	return func() bool { stop(); return <-resumed }
}
