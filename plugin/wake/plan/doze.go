package plan

import (
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// noPod is the value of the annotation postgres-stopped if no pod of an instance is left.
	noPod = "none"
	// replaceRetry is when a pod is inspected again in which PostgreSQL may listen after all: its sidecar is about to
	// remove the record.
	replaceRetry = 5 * time.Second
)

// change adds a change of the annotations.
func (p *Plan) change(why string, annotations map[string]*string) {
	p.Changes = append(p.Changes, Change{Annotations: annotations, Why: why})
}

// warn adds one that is a warning.
func (p *Plan) warn(why string, annotations map[string]*string) {
	p.Changes = append(p.Changes, Change{Annotations: annotations, Why: why, Warns: true})
}

// awaitStop finds out whether PostgreSQL has stopped if the sidecar does not record it, perhaps because it is down.
// Otherwise the gateway would hold clients forever.
func (p *Plan) awaitStop(state State, now time.Time) {
	if !state.Cluster.AwaitsStop() {
		p.Memory.stop = Stop{}
		return
	}
	stop, due := p.Memory.stop.Await(state.Cluster, now)
	p.Memory.stop = stop
	switch {
	case now.Before(due):
		p.at(due)
		return
	case state.Inspected == nil:
		p.Dial = true
		return
	}
	instances := *state.Inspected
	stop, stopped, next := stop.Observe(instances, now)
	p.Memory.stop = stop
	p.at(next)
	switch {
	case stopped:
		pod := noPod
		if len(instances) != 0 {
			pod = string(instances[len(instances)-1].UID)
		}
		p.change("PostgreSQL is stopped for a doze, although its sidecar has not recorded it",
			map[string]*string{contract.AnnotationPostgresStopped: &pod})
	case stop.Ignored(now):
		p.warn("the fence is lifted because PostgreSQL was not stopped",
			map[string]*string{contract.AnnotationFencedInstances: nil})
	case stop.FenceTimedOut(now):
		p.warn("assuming that PostgreSQL keeps running after its fence was lifted, because its sidecar does not say",
			map[string]*string{contract.AnnotationDozingSince: nil})
	}
}

// endDoze deletes the pods of a fenced cluster that is to hibernate, because the operator deletes no fenced pod. It
// lifts the fence once they are gone, because otherwise PostgreSQL would not be started when a person wakes the
// cluster. It also lifts it where the Cluster no longer lists the plugin, because the sidecar has then lost the right
// to.
func (p *Plan) endDoze(state State) {
	cluster := state.Cluster
	switch {
	case cluster.mustDeleteInstances():
		for _, pod := range state.Instances {
			p.Delete = append(p.Delete, Deletion{Pod: pod, Why: "a fenced instance of a cluster that hibernates is deleted"})
		}
	case cluster.mustLiftFence():
		changes := map[string]*string{contract.AnnotationFencedInstances: nil, contract.AnnotationDozingSince: nil, contract.AnnotationPostgresStopped: nil}
		if state.Annotations[contract.AnnotationPostgresStopped] == "" && !cluster.Hibernated {
			// PostgreSQL may still stop, so clients are held if a person turns hibernation off.
			delete(changes, contract.AnnotationDozingSince)
		}
		p.change("the fence is lifted although no client has connected", changes)
	}
}

// mustLiftFence reports whether the fence is to be lifted although no client has connected.
func (c Cluster) mustLiftFence() bool {
	asleep := c.Fenced && c.HibernationOn && c.Hibernated
	unlisted := c.Dozing && c.Stopped && !c.Listed
	// The operator hibernates only a healthy cluster, and a fenced one does not become healthy. If the hibernation is
	// our own, the sidecar withdraws it.
	waiting := c.Fenced && c.HibernationOn && !c.OwnsHibernation && c.WaitsForHealthy
	return (asleep || unlisted || waiting) && !c.Deleting
}

// mustDeleteInstances reports whether the plugin is to delete the instances' pods instead of the operator. The volumes
// must not be at risk when the pods are created again.
func (c Cluster) mustDeleteInstances() bool {
	return c.Fenced && c.HibernationOn && c.DeletingPods && !c.VolumesAtRisk && !c.Deleting
}

// restart deletes the primary's pod if its sidecar has recorded that PostgreSQL was not started after a doze, so that
// the operator creates it again: the instance manager tries only once. The record names the pod, and only one is
// written for each wake. It may be outdated, so PostgreSQL's port must refuse connections, and the kubelet must report
// its container as not ready. The volumes must not be at risk when the pod is created again.
func (p *Plan) restart(state State, now time.Time) {
	cluster := state.Cluster
	if cluster.RestartFailed == "" || cluster.VolumesAtRisk || cluster.Deleting {
		return
	}
	at := slices.IndexFunc(state.Instances,
		func(pod Pod) bool { return pod.Name == state.Primary && string(pod.UID) == cluster.RestartFailed })
	switch {
	case at < 0:
	case state.Inspected == nil:
		p.Dial = true
	case slices.ContainsFunc(*state.Inspected,
		func(i Instance) bool { return string(i.UID) == cluster.RestartFailed && i.Refuses && !i.Ready }):
		p.Delete = append(p.Delete, Deletion{Pod: state.Instances[at], Why: "the pod of a cluster that did not start after a doze is deleted", Warns: true})
	default:
		p.at(now.Add(replaceRetry))
	}
}

// disrupt requests hibernation of a dozing cluster whose pod is to leave its node, or whose Secrets have changed. The
// PodDisruptionBudget of a primary that is not ready allows no eviction, so a drain of the node would wait until the
// cluster hibernates. The instance manager of a new pod sets changed passwords at once, and that of one that dozed not
// before 20 s have passed.
func (p *Plan) disrupt(state State, now time.Time) {
	value := state.Annotations[contract.AnnotationDozingSince]
	since, err := time.Parse(time.RFC3339, value)
	if cluster := state.Cluster; !cluster.Dozing || cluster.Deleting || cluster.VolumesAtRisk || err != nil ||
		state.Disrupted == "" {
		return // a value that another client wrote says nothing about a doze
	}
	if slices.ContainsFunc(p.Changes,
		func(c Change) bool { _, lifts := c.Annotations[contract.AnnotationFencedInstances]; return lifts }) {
		return
	}
	// Another replica may have written it, by its own clock.
	requested, err := time.Parse(time.RFC3339, state.Annotations[contract.AnnotationSleepRequested])
	switch repeat := requested.Add(contract.MaxRequestAge); {
	case err == nil && !requested.Before(since) && now.Before(repeat):
		p.at(repeat) // then it means nothing any more
	case now.Before(since): // the sidecar would take a request of now for one from before the doze
		p.at(since)
	default:
		request := now.UTC().Format(time.RFC3339)
		p.Changes = append(p.Changes, Change{
			Annotations: map[string]*string{contract.AnnotationSleepRequested: &request},
			Why:         "a dozing cluster is to hibernate",
			Then:        &Event{Reason: "HibernationRequested", Occasion: value, Message: "Hibernating the dozing cluster, " + state.Disrupted, Once: true},
		})
	}
}
