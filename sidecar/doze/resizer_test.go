package doze

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// apiServer is an API server with one pod.
type apiServer struct {
	t     *testing.T
	mutex sync.Mutex
	uid   string
	small bool
	// readFails and resizeFails are the answers to the next requests; lateShrink is carried out after the next read.
	readFails, resizeFails []error
	lateShrink             bool
	full                   bool // the node has no room for a growth, which the kubelet says at the second read
	reads, resizes         int
}

func nextError(errs *[]error) error {
	if len(*errs) == 0 {
		return nil
	}
	err := (*errs)[0]
	*errs = (*errs)[1:]
	return err
}

func (s *apiServer) Pod(context.Context) (*kubernetes.Pod, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.reads++
	if err := nextError(&s.readFails); err != nil {
		return nil, err
	}
	pod := podOf(s.t, stored, stored, operatorsBare, oursBoth)
	if s.small {
		pod = podOf(s.t, stored, smallCPU, operatorsBare, oursBoth)
	}
	if s.uid != "" {
		pod.UID = "another"
	}
	if s.full && !s.small && s.resizes != 0 && s.reads > 2 {
		pod.Status.Conditions = []kubernetes.Condition{{Type: "PodResizePending", Status: "True", Reason: "Deferred"}}
	}
	s.small, s.lateShrink = s.small || s.lateShrink, false
	return pod, nil
}

func (s *apiServer) Resize(_ context.Context, _ *kubernetes.Pod, container string, requests map[string]resource.Quantity) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.resizes++
	if container != contract.PostgresContainer {
		return fmt.Errorf("container %s", container)
	}
	if err := nextError(&s.resizeFails); err != nil {
		return err
	}
	request := requests["cpu"]
	s.small = request.String() == smallestCPU
	return nil
}

// world is a resizer that runs in a synctest bubble.
type world struct {
	*apiServer
	*Resizer
	log *bytes.Buffer
}

func (w *world) isSmall() bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.apiServer.small
}

func (w *world) counts() (reads, resizes int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.reads, w.resizes
}

func resizing(t *testing.T, s *apiServer, test func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s.t = t
		w := &world{apiServer: s, log: &bytes.Buffer{}}
		w.Resizer = NewResizer(s, "pod-uid", resource.Quantity{}, slog.New(slog.NewTextHandler(w.log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		test(t, w)
		cancel()
		<-done
	})
}

func refusedWith(code, count int) []error {
	var errs []error
	for range count {
		errs = append(errs, &kubernetes.RefusedError{Code: code})
	}
	return errs
}

func TestResizer_shrinksAndGrows(t *testing.T) {
	t.Parallel()
	resizing(t, &apiServer{}, func(t *testing.T, w *world) {
		for _, small := range []bool{false, true, false, true} {
			w.Want(small)
			synctest.Wait()
			if w.isSmall() != small {
				t.Errorf("small is %t, want %t", w.isSmall(), small)
			}
		}
		time.Sleep(time.Hour)
		if reads, resizes := w.counts(); reads != 4 || resizes != 3 {
			t.Errorf("%d reads and %d resizes", reads, resizes)
		}
	})
}

func TestResizer_triesAgain(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("read: %w", kubernetes.ErrAnswerLost)
	for _, row := range []struct {
		rule   string
		server *apiServer
		small  bool
		within time.Duration
		want   bool // it becomes as wanted
		tells  bool
		logs   int
	}{
		{"after a conflict, which is usual", &apiServer{resizeFails: []error{kubernetes.ErrConflict, kubernetes.ErrConflict}}, true, time.Second, true, false, 0},
		{"after a lost answer", &apiServer{readFails: []error{away, away}}, true, time.Second, true, false, 1},
		{"a growth that a quota refuses, for as long as it does", &apiServer{small: true, resizeFails: refusedWith(403, 30)}, false, 30 * time.Minute, true, true, 1},
		{"a growth whose pod may not be read", &apiServer{small: true, readFails: refusedWith(403, 30)}, false, 30 * time.Minute, true, false, 1},
		{"not a shrink that is refused", &apiServer{resizeFails: refusedWith(403, 1)}, true, time.Hour, false, false, 1},
		{"nor one that this Kubernetes does not know", &apiServer{resizeFails: refusedWith(404, 1)}, true, time.Hour, false, false, 1},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			resizing(t, row.server, func(t *testing.T, w *world) {
				w.Want(row.small)
				time.Sleep(row.within)
				synctest.Wait()
				if got := w.isSmall() == row.small; got != row.want {
					t.Errorf("it became as wanted: %t", got)
				}
				told := 0
				for len(w.Refused()) != 0 {
					<-w.Refused()
					told++
				}
				if told > 1 || (told == 1) != row.tells {
					t.Errorf("told %d times", told)
				}
				if logs := strings.Count(w.log.String(), "cannot change"); logs != row.logs {
					t.Errorf("logged %d times, want %d", logs, row.logs)
				}
			})
		})
	}
}

func TestResizer_saysWhileThePodLacksRequests(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		server *apiServer
		until  func(*world)
	}{
		{"a quota refuses them", &apiServer{small: true, resizeFails: refusedWith(403, 1000)}, func(w *world) { w.resizeFails = nil }},
		{"the node has no room for them", &apiServer{small: true, full: true}, func(w *world) { w.full = false }},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			resizing(t, row.server, func(t *testing.T, w *world) {
				w.Want(false)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if !w.GrowthPending() {
					t.Error("they are not lacking after 30 s")
				}
				w.mutex.Lock()
				row.until(w)
				w.mutex.Unlock()
				time.Sleep(2 * maxRetry)
				synctest.Wait()
				if w.GrowthPending() {
					t.Error("they are still lacking")
				}
				before, _ := w.counts()
				time.Sleep(time.Hour)
				if after, _ := w.counts(); after != before {
					t.Errorf("the pod is read %d more times", after-before)
				}
				w.Want(true)
				synctest.Wait()
				if w.GrowthPending() {
					t.Error("a pod that is to be small lacks nothing")
				}
			})
		})
	}
}

func TestResizer_lacksNothingThatIsGrantedAtOnce(t *testing.T) {
	t.Parallel()
	resizing(t, &apiServer{small: true}, func(t *testing.T, w *world) {
		w.Want(false)
		for range 100 {
			synctest.Wait()
			if w.GrowthPending() {
				t.Fatal("requests are lacking that the node has granted")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if w.isSmall() {
			t.Error("the pod has not grown")
		}
	})
}

func TestResizer_growsAfterAShrinkThatCameLate(t *testing.T) {
	t.Parallel()
	resizing(t, &apiServer{resizeFails: []error{fmt.Errorf("resize: %w", kubernetes.ErrAnswerLost)}}, func(t *testing.T, w *world) {
		w.Want(true)
		synctest.Wait()
		w.mutex.Lock()
		w.lateShrink = true // after the read for the growth
		w.mutex.Unlock()
		w.Want(false)
		time.Sleep(lostAnswerTimeout)
		synctest.Wait()
		if w.isSmall() {
			t.Error("it stays small")
		}
	})
}

func TestResizer_aDozeEndsTheGrowthBeforeIt(t *testing.T) {
	t.Parallel()
	resizing(t, &apiServer{small: true, resizeFails: refusedWith(403, 1000)}, func(t *testing.T, w *world) {
		w.Want(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		w.Want(true)
		synctest.Wait()
		_, before := w.counts()
		time.Sleep(time.Hour)
		if _, after := w.counts(); after != before || !w.isSmall() {
			t.Errorf("%d resizes while it dozes", after-before)
		}
	})
}

func TestResizer_leavesAnotherPodOfItsName(t *testing.T) {
	t.Parallel()
	resizing(t, &apiServer{uid: "another"}, func(t *testing.T, w *world) {
		w.Want(true)
		time.Sleep(time.Hour)
		if reads, resizes := w.counts(); reads != 1 || resizes != 0 {
			t.Errorf("%d reads and %d resizes", reads, resizes)
		}
	})
}
