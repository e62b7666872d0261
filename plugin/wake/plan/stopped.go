package plan

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// stopsWithin is how long the sidecar is given to say that PostgreSQL has stopped, until the plugin looks for itself. The
	// instance manager obeys a fence after 25 s at most.
	stopsWithin = 30 * time.Second
	// lookEvery is the interval between two looks, and refusedFor that after which a refusal must be repeated: one may be of the
	// moment before a starting postmaster listens.
	lookEvery, refusedFor = 5 * time.Second, time.Second
	// settlesWithin is after how long a fence that was lifted before PostgreSQL had stopped is taken to stop it no longer. Only the
	// pod's own sidecar can prove that, by the postmaster's identity and the instance manager's word, and this is for one that
	// says nothing. Where it is down, PostgreSQL has to serve all the same. A manager that still obeys does so after 25 s at most,
	// and PostgreSQL accepts nobody from the checkpoint on, which the sidecar's preparation made a short one.
	settlesWithin = 2 * time.Minute
	// obeysWithin is how long an instance manager may leave PostgreSQL serving although it is fenced, which is several times as long as
	// one takes that runs.
	obeysWithin = 2 * time.Minute
)

// AwaitsStop reports whether PostgreSQL is to be seen stopped before anybody is passed on, and has not been.
func (c Cluster) AwaitsStop() bool { return (c.Dozing && !c.Stopped || c.Unsettled) && !c.Gone }

// Instance is what a look at an instance's pod has found.
type Instance struct {
	UID types.UID
	// Ready says that the kubelet takes PostgreSQL's container for ready: the instance manager has not obeyed the fence, or not long
	// ago. Refuses says that nobody listens on PostgreSQL's port.
	Ready, Refuses bool
}

// Stop is what is known of a stop that the sidecar has not told of.
type Stop struct {
	// began is since when it has been waited for, for a fence that was lifted (unsettled) or not.
	began     time.Time
	unsettled bool
	// pods are those that have refused since then.
	pods    string
	refused time.Time
	// serving is since when every look has found PostgreSQL serving.
	serving time.Time
}

// Await takes in the Cluster, which awaits a stop, and returns when to look at its instances.
func (s Stop) Await(cluster Cluster, now time.Time) (Stop, time.Time) {
	if s.began.IsZero() || s.unsettled != cluster.Unsettled {
		s = Stop{began: now, unsettled: cluster.Unsettled}
	}
	return s, s.began.Add(stopsWithin)
}

// Found takes in a look at all instances that have not ended. It reports whether that proves that PostgreSQL has stopped: nobody
// has listened twice, and the kubelet says the same of the pod's inside, so that a firewall that refuses in its place proves
// nothing.
//
// A postmaster closes its sockets when it exits, after the shutdown's checkpoint (CloseServerPorts in postmaster.c, 15 to 18). Until
// then it answers 57P03 or, at last, lets connections wait. So every other answer, and none, proves nothing.
func (s Stop) Found(instances []Instance, now time.Time) (after Stop, stopped bool, next time.Time) {
	serves := func(i Instance) bool { return i.Ready && !i.Refuses }
	if !slices.ContainsFunc(instances, serves) {
		s.serving = time.Time{}
	} else if s.serving.IsZero() {
		s.serving = now
	}
	var uids []string
	for _, instance := range instances {
		if instance.Ready || !instance.Refuses {
			s.refused = time.Time{}
			return s, false, now.Add(lookEvery)
		}
		uids = append(uids, string(instance.UID))
	}
	slices.Sort(uids)
	if pods := strings.Join(uids, " "); s.refused.IsZero() || s.pods != pods {
		s.pods, s.refused = pods, now
	}
	if next = s.refused.Add(refusedFor); now.Before(next) {
		return s, false, next
	}
	return s, true, now.Add(lookEvery) // to see that it has been written
}

// Ignored reports whether the fence is to be lifted because nobody obeys it: PostgreSQL serves, and everybody is held.
func (s Stop) Ignored(now time.Time) bool {
	return !s.unsettled && !s.serving.IsZero() && now.Sub(s.serving) >= obeysWithin
}

// Settled reports whether a fence that was lifted is taken to stop PostgreSQL no longer.
func (s Stop) Settled(now time.Time) bool { return s.unsettled && now.Sub(s.began) >= settlesWithin }
