package plan

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// sidecarTimeout is how long the plugin waits for the sidecar to record that PostgreSQL has stopped, before it
	// inspects the instances. The instance manager obeys a fence after 25 s at most.
	sidecarTimeout = 30 * time.Second
	// inspectionInterval is the interval between two inspections. After a refused connection, the next one follows
	// after refusalInterval: one may be refused just before a starting postmaster listens.
	inspectionInterval, refusalInterval = 5 * time.Second, time.Second
	// LiftedFenceTimeout is after how long a fence that was lifted before PostgreSQL had stopped is assumed not to stop
	// it any more. Only the pod's sidecar can prove that, by the postmaster's identity and the instance manager's
	// status. If the sidecar is down, clients must be served all the same. An instance manager that still obeys the
	// fence does so after 25 s at most. From the shutdown's checkpoint on, PostgreSQL accepts no sessions, and the
	// sidecar's preparation has made that checkpoint short.
	LiftedFenceTimeout = 2 * time.Minute
	// fenceTimeout is how long PostgreSQL may serve although it is fenced: several times as long as a running instance
	// manager takes.
	fenceTimeout = 2 * time.Minute
)

// AwaitsStop reports whether clients are held because PostgreSQL may still stop.
func (c Cluster) AwaitsStop() bool { return (c.Dozing && !c.Stopped || c.MayStillStop) && !c.Deleting }

// Instance is the result of inspecting an instance's pod.
type Instance struct {
	UID  types.UID
	Name string
	// Deleting says that the pod is being deleted, and Running are its containers that still run.
	Deleting bool
	Running  []string
	// Ready says that the kubelet reports PostgreSQL's container as ready: the instance manager has not obeyed the
	// fence, or only a moment ago. Refuses says that PostgreSQL's port refuses connections.
	Ready, Refuses bool
}

// Stop is what is known of a stop of PostgreSQL that the sidecar has not recorded.
type Stop struct {
	// began is when the wait for the sidecar began. fenceLifted says that it was for a fence that had been lifted.
	began       time.Time
	fenceLifted bool
	// pods are the UIDs of the pods that have refused connections since refused.
	pods    string
	refused time.Time
	// serving is since when every inspection has found PostgreSQL serving; zero if the last one has not.
	serving time.Time
}

// Await adds a state of the Cluster, for which AwaitsStop holds, and returns when to inspect its instances.
func (s Stop) Await(cluster Cluster, now time.Time) (Stop, time.Time) {
	if s.began.IsZero() || s.fenceLifted != cluster.MayStillStop {
		s = Stop{began: now, fenceLifted: cluster.MayStillStop}
	}
	return s, s.began.Add(sidecarTimeout)
}

// Observe adds an inspection of all instances that have not ended. It reports whether it proves that PostgreSQL has
// stopped: every instance has refused connections twice, and the kubelet reports PostgreSQL's container as not ready.
// The second condition excludes a firewall that refuses connections. next is when to inspect the instances again.
//
// A postmaster closes its sockets when it exits, after the shutdown's checkpoint (CloseServerPorts in postmaster.c, 15
// to 18). Until then it answers 57P03 or, in the end, leaves connections unanswered. So any other result proves
// nothing.
func (s Stop) Observe(instances []Instance, now time.Time) (after Stop, stopped bool, next time.Time) {
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
			return s, false, now.Add(inspectionInterval)
		}
		uids = append(uids, string(instance.UID))
	}
	slices.Sort(uids)
	if pods := strings.Join(uids, " "); s.refused.IsZero() || s.pods != pods {
		s.pods, s.refused = pods, now
	}
	if next = s.refused.Add(refusalInterval); now.Before(next) {
		return s, false, next
	}
	return s, true, now.Add(inspectionInterval) // to check that the stop has been recorded
}

// Ignored reports whether the fence is to be lifted because PostgreSQL still serves, while the gateway holds all
// clients.
func (s Stop) Ignored(now time.Time) bool {
	return !s.fenceLifted && !s.serving.IsZero() && now.Sub(s.serving) >= fenceTimeout
}

// FenceTimedOut reports whether a fence that was lifted is assumed not to stop PostgreSQL any more.
func (s Stop) FenceTimedOut(now time.Time) bool {
	return s.fenceLifted && now.Sub(s.began) >= LiftedFenceTimeout
}
