package plan

import (
	"testing"
	"time"
)

func TestStop(t *testing.T) {
	t.Parallel()
	refusing, other := Instance{UID: "a", Refuses: true}, Instance{UID: "b", Refuses: true}
	type look struct {
		after   time.Duration // since the look before
		found   []Instance
		stopped bool
		next    time.Duration
	}
	for _, row := range []struct {
		rule  string
		looks []look
	}{
		{"who refuses twice has stopped", []look{{0, []Instance{refusing}, false, time.Second}, {time.Second, []Instance{refusing}, true, 5 * time.Second}}},
		{"not if the second time is too early", []look{{0, []Instance{refusing}, false, time.Second}, {999 * time.Millisecond, []Instance{refusing}, false, time.Millisecond}}},
		{"nor if somebody listens", []look{{0, []Instance{{UID: "a"}}, false, 5 * time.Second}, {time.Hour, []Instance{{UID: "a"}}, false, 5 * time.Second}}},
		{"nor if somebody listens in between", []look{
			{0, []Instance{refusing}, false, time.Second}, {time.Second, []Instance{{UID: "a"}}, false, 5 * time.Second},
			{5 * time.Second, []Instance{refusing}, false, time.Second}, {time.Second, []Instance{refusing}, true, 5 * time.Second},
		}},
		{"nor if it is another pod", []look{{0, []Instance{refusing}, false, time.Second}, {time.Second, []Instance{other}, false, time.Second}}},
		{"nor if another pod is left", []look{{0, []Instance{refusing, {UID: "b"}}, false, 5 * time.Second}, {5 * time.Second, []Instance{refusing, {UID: "b"}}, false, 5 * time.Second}}},
		{"the pods' order is nothing", []look{{0, []Instance{refusing, other}, false, time.Second}, {time.Second, []Instance{other, refusing}, true, 5 * time.Second}}},
		{"a firewall that refuses proves nothing while the kubelet calls PostgreSQL ready", []look{
			{0, []Instance{{UID: "a", Ready: true, Refuses: true}}, false, 5 * time.Second}, {5 * time.Second, []Instance{{UID: "a", Ready: true, Refuses: true}}, false, 5 * time.Second},
		}},
		{"where there is no pod nothing runs", []look{{0, nil, false, time.Second}, {time.Second, nil, true, 5 * time.Second}}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			stop, at := Stop{}, now
			for i, look := range row.looks {
				at = at.Add(look.after)
				var stopped bool
				var next time.Time
				if stop, stopped, next = stop.Observe(look.found, at); stopped != look.stopped || next.Sub(at) != look.next {
					t.Errorf("look %d: stopped %t, the next in %s", i, stopped, next.Sub(at))
				}
			}
		})
	}
}

func TestStop_isIgnoredByWhoeverLeavesPostgreSQLServing(t *testing.T) {
	t.Parallel()
	serving, stopping := Instance{UID: "a", Ready: true}, Instance{UID: "a"}
	for _, row := range []struct {
		rule  string
		state Cluster
		found []Instance // every 30 s
		want  bool
	}{
		{"for two minutes", Cluster{Dozing: true}, []Instance{serving, serving, serving, serving, serving}, true},
		{"not before", Cluster{Dozing: true}, []Instance{serving, serving, serving, serving}, false},
		{"a stop that takes its time is obeyed", Cluster{Dozing: true}, []Instance{stopping, stopping, stopping, stopping, stopping, stopping}, false},
		{"also one that began late", Cluster{Dozing: true}, []Instance{serving, serving, serving, serving, stopping}, false},
		{"a fence that was lifted is ignored by nobody", Cluster{MayStillStop: true}, []Instance{serving, serving, serving, serving, serving}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			at := now
			stop, _ := Stop{}.Await(row.state, at)
			for i, found := range row.found {
				at = now.Add(time.Duration(i) * 30 * time.Second)
				stop, _, _ = stop.Observe([]Instance{found}, at)
			}
			if got := stop.Ignored(at); got != row.want {
				t.Errorf("ignored: %t", got)
			}
		})
	}
}

func TestStop_isWaitedForBeforeAnybodyLooks(t *testing.T) {
	t.Parallel()
	fenced, lifted := Cluster{Fenced: true, Dozing: true}, Cluster{MayStillStop: true}
	stop, due := Stop{}.Await(fenced, now)
	if due != now.Add(sidecarTimeout) || stop.FenceTimedOut(now.Add(time.Hour)) {
		t.Errorf("due at %s; a fence settles: %t", due, stop.FenceTimedOut(now.Add(time.Hour)))
	}
	if _, again := stop.Await(fenced, now.Add(time.Minute)); again != due {
		t.Errorf("the wait begins anew, and ends at %s", again)
	}
	at := now.Add(time.Hour)
	stop, due = stop.Await(lifted, at)
	if due != at.Add(sidecarTimeout) || stop.FenceTimedOut(at.Add(LiftedFenceTimeout-1)) || !stop.FenceTimedOut(at.Add(LiftedFenceTimeout)) {
		t.Errorf("a fence that is lifted is due at %s", due)
	}
	for rule, row := range map[string]struct {
		cluster Cluster
		want    bool
	}{
		"fenced": {fenced, true}, "lifted before it has stopped": {lifted, true}, "stopped": {Cluster{Dozing: true, Stopped: true}, false},
		"hibernating": {Cluster{Fenced: true, HibernationOn: true}, false}, "deleted": {Cluster{Dozing: true, Deleting: true}, false}, "awake": {Cluster{}, false},
	} {
		if row.cluster.AwaitsStop() != row.want {
			t.Errorf("%s: awaits a stop: %t", rule, !row.want)
		}
	}
}
