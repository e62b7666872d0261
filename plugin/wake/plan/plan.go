package plan

import (
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// State is what a plan is made from.
type State struct {
	// Name is the Cluster's, and Resource what kubectl calls its kind, such as clusters.postgresql.cnpg.io.
	Name     types.NamespacedName
	UID      types.UID
	Resource string
	// Gone says that there is no Cluster. Then only Poolers are set.
	Gone    bool
	Cluster Cluster
	// Annotations are the Cluster's, and Primary is its status.currentPrimary.
	Annotations map[string]string
	Primary     string
	Services    []Service
	Poolers     []Pooler
	// Unroutable names the Services of which not every client can be led to the gateway, and says why.
	Unroutable []string
	// Pending are what only a running instance applies, and Slots when Backups are due; read only if the cluster sleeps.
	Pending Pending
	Slots   []Slot
	// Backups are what is known of the cluster's Backups.
	Backups Backups
	// Disrupted says why a dozing cluster is to hibernate; empty: it may keep dozing.
	Disrupted string
	// Instances are the pods of the instances by the informers, and Inspected are those that have not ended by the API
	// server, if the plan asked for them.
	Instances []Pod
	Inspected *[]Instance
	// LedHere says that an EndpointSlice of this replica exists.
	LedHere bool
	// Adopted are the field managers whose hibernation this project takes over.
	Adopted []string
	// HandoverWait is how long other nodes' kube-proxies are given.
	HandoverWait time.Duration
	Memory       Memory
}

// Pod is an instance's pod that is not being deleted.
type Pod struct {
	UID   types.UID
	Name  string
	Ready bool
}

// Serves reports whether the primary is ready. It looks at no Service, because the plan may lack the read-write one.
func (s State) Serves() bool {
	return slices.ContainsFunc(s.Instances, func(pod Pod) bool { return pod.Name == s.Primary && pod.Ready })
}

// Memory is what a replica remembers of a cluster from one plan to the next. The zero value remembers nothing.
type Memory struct {
	// wakingUntil is how long the gateway stands in for Services that do not get ready. dozed says that the cluster
	// dozed or was about to, and that a Service has been routed to the gateway ever since; ready is since when each has
	// been ready without a break.
	wakingUntil time.Time
	dozed       bool
	ready       map[types.UID]time.Time
	// bypassed is the announcement of a doze during which no Service has led to an instance directly, and bypassedSince
	// since when.
	bypassed      string
	bypassedSince time.Time
	// stop is what is known of a stop that no sidecar has recorded.
	stop Stop
	// serving is since when the Service of the last wake is ready or, after a wake for a Backup, the primary.
	serving time.Time
	// took is how long the last wake from hibernation took, slept says that the cluster has slept since, and asleepSince when that
	// sleep began.
	took        time.Duration
	slept       bool
	asleepSince time.Time
	// completed is the newest completed Backup, listed in this sleep or after it for the next Backup; nil: not listed.
	// lastBackup is when the last one was completed before this sleep, or the cluster was created; zero: unknown, or
	// awake.
	completed  *Completed
	lastBackup time.Time
	// MadeBackup is the name of the last Backup that was made because of its age. ListBackupsFrom is when the Backups may
	// be listed again after that has failed.
	MadeBackup      string
	ListBackupsFrom time.Time
	// Unwritten are the Events that could not be written yet and that no later plan has.
	Unwritten []Event
}

// LastBackup is when the sleeping cluster's last Backup was completed, or the cluster was created; zero: unknown or
// awake.
func (m Memory) LastBackup() time.Time { return m.lastBackup }

// Deletion is a pod that is to be deleted, and why, which is logged as a warning if Warns is set.
type Deletion struct {
	Pod
	Why   string
	Warns bool
}

// Change is a change of the Cluster's annotations; nil removes one.
type Change struct {
	Annotations map[string]*string
	// Why is logged when it is written, as a warning if Warns is set.
	Why   string
	Warns bool
	// First is an Event that must be written before, Then one that is written afterwards.
	First, Then *Event
}

// Plan is what the plugin is to do.
type Plan struct {
	// Routes are carried out first.
	Routes
	// List and Dial say that the plan is to be made again with the instances' pods, as the API server has them, and
	// with whether their port refuses connections.
	List, Dial bool
	// ListBackups says that it is to be made again with the newest completed Backup.
	ListBackups bool
	// Changes are written unless the Cluster has changed.
	Changes []Change
	// Delete are the pods that are to be deleted, if the plan for the Cluster of the API server says so too.
	Delete []Deletion
	// Events are written unless they have been.
	Events []Event
	// Confirm is the announcement of a doze to be confirmed a second time, because for HandoverWait every client has
	// been routed to the gateway. Only failures of Poolers, Backups and Events do not prevent that.
	Confirm string
	// Adopt is the field manager whose hibernation is to be taken over, so that a connection ends it; empty: none.
	Adopt string
	// Scale are the changes of Poolers, made unless they have changed.
	Scale []Scaling
	// Wake is a wake that is due although no client waits; nil: none.
	Wake *Wake
	// MakeBackup is a Backup that is to be made unless it has been; nil: none.
	MakeBackup *cnpgv1.Backup
	// Next is when to look again without anything having changed; zero: never.
	Next time.Time
	// Memory is what is to be remembered.
	Memory Memory
}

// Decide makes the plan.
func Decide(state State, now time.Time) Plan {
	if state.Gone {
		gone := Plan{Routes: Routes{Reason: ReasonGone}}
		gone.scale(state, now)
		return gone
	}
	p := &Plan{Memory: state.Memory, Events: slices.Clone(state.Memory.Unwritten)}
	p.route(state, now)
	p.confirm(state, now)
	p.tellUnroutable(state)
	p.tellUnwakeable(state)
	p.awaitStop(state, now)
	p.endDoze(state)
	p.restart(state, now)
	p.disrupt(state, now)
	p.tellWoken(state, now)
	p.tellLongStop(state, now)
	p.wake(state, now)
	p.adopt(state)
	p.scale(state, now)
	return *p
}

// at asks for another plan at that time; zero: none.
func (p *Plan) at(when time.Time) {
	if !when.IsZero() && (p.Next.IsZero() || when.Before(p.Next)) {
		p.Next = when
	}
}

// route decides which Services lead to the gateway, and updates what is remembered for that.
func (p *Plan) route(state State, now time.Time) {
	services := p.remember(state, now)
	p.Routes = routing{
		Cluster: state.Cluster, Services: services, Unroutable: len(state.Unroutable) != 0, WakingUntil: p.Memory.wakingUntil,
		Dozed: p.Memory.dozed,
	}.routes(now)
	p.at(p.Routes.Next)
	if len(p.Lead) == 0 {
		p.Memory.dozed, p.Memory.ready = false, nil
	}
	p.leadPoolers(state, now)
	if p.Revoke {
		p.Changes = append(p.Changes, Change{
			Annotations: map[string]*string{contract.AnnotationGatewayReady: nil},
			Why:         "the deadline of an acknowledged announcement has passed",
		})
	}
}

// remember updates how long the gateway stands in for a woken cluster's Services, and returns these with since when
// each has been ready after a doze. A replica that was started after the doze does not know of it.
func (p *Plan) remember(state State, now time.Time) []Service {
	cluster, memory := state.Cluster, &p.Memory
	all := slices.Concat(state.Services, state.poolerServices())
	switch led := slices.ContainsFunc(all, func(s Service) bool { return s.Led }); {
	case cluster.Sleeps() || !led:
		memory.wakingUntil = time.Time{}
	case memory.wakingUntil.IsZero():
		memory.wakingUntil = now.Add(StandInFor)
	}
	switch {
	case cluster.HibernationOn:
		memory.dozed, memory.ready = false, nil
	case cluster.Dozing || cluster.MayStillStop || cluster.DozeAcknowledged:
		memory.dozed, memory.ready = true, nil
	case memory.dozed:
		services, ready := slices.Clone(state.Services), map[types.UID]time.Time{}
		for i := range services {
			if service := &services[i]; service.Ready {
				since, known := memory.ready[service.UID]
				if !known {
					since = now
				}
				service.ReadySince, ready[service.UID] = since, since
			}
		}
		memory.ready = ready
		return services
	}
	return state.Services
}

// confirm confirms the announcement of a doze once no Service has led to an instance directly for HandoverWait.
func (p *Plan) confirm(state State, now time.Time) {
	memory := &p.Memory
	if p.Hold == "" {
		memory.bypassed = ""
		return
	}
	if memory.bypassed != p.Hold {
		memory.bypassed, memory.bypassedSince = p.Hold, now
	}
	if until := memory.bypassedSince.Add(state.HandoverWait); now.Before(until) {
		p.at(until)
		return
	}
	p.Confirm = p.Hold
}
