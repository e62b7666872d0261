package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Event is something that happened to a Cluster once.
type Event struct {
	// Warning says that it is a Warning: clients are refused, or the cluster cannot sleep.
	Warning bool
	// Reason and Message are what people read.
	Reason, Message string
	// Occasion tells it apart from what happened to the Cluster at other times, for the same reason.
	Occasion string
	// Once says that no later plan has it: if it cannot be written, it is remembered.
	Once bool
}

// tellUnroutable writes the unroutable Services to an annotation of the Cluster, so that its instances keep it awake.
// The replica that writes the annotation also writes an Event, before it: the annotation says that the Event has been
// written.
func (p *Plan) tellUnroutable(state State) {
	if state.Cluster.Deleting {
		return
	}
	before, there := state.Annotations[contract.AnnotationUnroutableServices]
	names := strings.Join(state.Unroutable, "; ")
	switch obstacle := state.Cluster.Obstacle(); {
	case obstacle != "" && obstacle != ReasonMaintenance, names == "":
		if there {
			p.change("no Service of the cluster keeps it awake any more",
				map[string]*string{contract.AnnotationUnroutableServices: nil})
		}
		return
	case names == before:
		return
	}
	message := "The cluster stays awake, because the gateway cannot receive the clients of these Services while it sleeps: "
	if state.Cluster.Sleeps() {
		message = "The cluster sleeps, and some clients of these Services cannot reach the gateway to wake it. Once another Service " +
			"of the cluster has woken it, it stays awake because of: "
	}
	p.Changes = append(p.Changes, Change{
		Annotations: map[string]*string{contract.AnnotationUnroutableServices: &names},
		Why:         "cannot route the clients of a cluster's Services to the gateway",
		First: &Event{
			Warning: true, Reason: "ServiceUnroutable", Occasion: names,
			Message: message + names + ". Change them, or set their annotation " + contract.AnnotationUnroutable + " to " + contract.UnroutableAccept,
		},
	})
}

// reasonsInWords say why connections no longer wake a sleeping cluster.
var reasonsInWords = map[Reason]string{
	ReasonNotListed: "the Cluster does not list the plugin any more",
	ReasonInvalid:   "an annotation is invalid",
	ReasonDisabled:  "the feature was turned off",
	ReasonManual:    "the annotation " + contract.AnnotationWake + " does not list " + contract.WakeOnConnect,
}

// tellUnwakeable says why nothing wakes a sleeping cluster, once for each sleep and reason: during maintenance, while
// its clients are still routed here; and, with how to wake it by hand, when this replica stops routing them here.
func (p *Plan) tellUnwakeable(state State) {
	occasion := state.Annotations[contract.AnnotationAsleepSince] + " " + string(p.Reason)
	unwritten := len(p.Events)
	// An unwritten Event is replaced by one with the current reason.
	p.Events = slices.DeleteFunc(p.Events, func(e Event) bool { return e.Reason == "WakesByHandOnly" })
	switch {
	case p.Reason == ReasonMaintenance:
		p.Events = append(p.Events, Event{
			Warning: true, Reason: "WakeRefused", Message: "The cluster sleeps and is not woken: " + VolumesAtRisk,
			Occasion: occasion,
		})
	case p.Unwakeable && (state.LedHere || len(p.Events) != unwritten):
		risk := ""
		if state.Cluster.VolumesAtRisk {
			risk = " Do not wake it yet: " + VolumesAtRisk + "."
		}
		message := fmt.Sprintf("The cluster sleeps and connections no longer wake it: %s.%s To wake it, once its pods are gone: kubectl annotate -n %s %s %s %s-",
			reasonsInWords[p.Reason], risk, state.Name.Namespace, state.Resource, state.Name.Name, contract.AnnotationHibernation)
		p.Events = append(p.Events, Event{Warning: true, Reason: "WakesByHandOnly", Message: message, Occasion: occasion, Once: true})
	}
}

// WakerEventDelay is how long the replica that woke a cluster has to write its Event once the Service is ready.
const WakerEventDelay = 5 * time.Second

// mostBy is the longest description of what a cluster was woken for: that of a Backup with the longest name.
const mostBy = len("Backup ") + validation.DNS1123SubdomainMaxLength

// tellWoken says what the cluster was woken for, or who woke it, if the replica that woke it has not, for example
// because it stopped. It ignores older wakes, so that a starting plugin does not report all past ones.
func (p *Plan) tellWoken(state State, now time.Time) {
	if state.Cluster.HibernationOn || state.Cluster.Dozing {
		p.Memory.serving = time.Time{}
		return
	}
	value := state.Annotations[contract.AnnotationLastWake]
	wake, err := contract.ParseLastWake(value)
	if err != nil || now.Sub(wake.At) > StandInFor || len(wake.By) > mostBy {
		return // a value that another client wrote says nothing about a wake
	}
	if wake.Cause != "" {
		from := map[bool]string{true: "a doze", false: "hibernation"}[wake.Depth == contract.DepthDoze]
		p.Events = append(p.Events, Woken(value, fmt.Sprintf("Woken from %s for %s", from, wake.By)))
		return
	}
	serves := func(s Service) bool { return s.Name == wake.Service && s.Direct }
	if !slices.ContainsFunc(slices.Concat(state.Services, state.poolerServices()), serves) {
		return
	}
	if p.Memory.serving.IsZero() {
		p.Memory.serving = now
	}
	if until := p.Memory.serving.Add(WakerEventDelay); now.Before(until) {
		p.at(until)
		return
	}
	from := ""
	if wake.Depth == contract.DepthDoze {
		from = " from a doze"
	}
	p.Events = append(p.Events, Woken(value, fmt.Sprintf(
		"Woken%s by %s through Service %s; how long it took is unknown",
		from, wake.Who(), wake.Service)))
}

// Woken is the Event that says who woke a cluster. A wake is identified by the annotation that its patch wrote, so that
// the replica that turned hibernation off and one that survived it write the same Event.
func Woken(lastWake, message string) Event {
	return Event{Reason: "Woken", Message: message, Occasion: lastWake}
}

// LongStop is how long PostgreSQL may take to stop before an Event says what it waits for. Most stops take two seconds.
const LongStop = 30 * time.Second

// tellLongStop says, once for each sleep, what PostgreSQL waits for if it takes long to stop: clients are held or
// refused until then. The sidecar cannot, because it ends as soon as its pod is deleted.
func (p *Plan) tellLongStop(state State, now time.Time) {
	cluster := state.Cluster
	key, order := contract.AnnotationDozingSince, "its WAL to be archived, for at most spec.switchoverDelay"
	if cluster.HibernationOn {
		key, order = contract.AnnotationAsleepSince,
			"sessions to end, for at most spec.smartShutdownTimeout, and then for its WAL to be archived"
	}
	begun := state.Annotations[key]
	since, err := time.Parse(time.RFC3339, begun)
	if stops := cluster.OwnsHibernation && !cluster.Hibernated ||
		cluster.Dozing && !cluster.Stopped; !stops || err != nil {
		return // a value that another client wrote says nothing about a stop
	}
	due := since.Add(LongStop)
	switch {
	case now.Before(due):
		p.at(due)
		return
	case state.Inspected == nil:
		p.List = true
		return
	}
	var waits []string
	for _, instance := range *state.Inspected {
		waits = append(waits, instance.waits(cluster))
	}
	held := ""
	if len(p.Lead) != 0 {
		held = ", and clients are held until it has"
	}
	p.Events = append(p.Events, Event{Warning: true, Reason: "StopDelayed", Occasion: begun, Message: fmt.Sprintf(
		"PostgreSQL has not stopped within %s%s: %s. PostgreSQL waits for %s (condition ContinuousArchiving)",
		LongStop, held, cmp.Or(strings.Join(waits, "; "), "the operator has not reported yet that every pod is deleted"), order)})
}

// waits says what a stop waits for in an instance's pod.
func (i Instance) waits(cluster Cluster) string {
	switch {
	case cluster.Dozing:
		return fmt.Sprintf("the instance manager of pod %s has not stopped it", i.Name)
	case !i.Deleting:
		return fmt.Sprintf("the operator has not deleted pod %s", i.Name)
	default:
		return fmt.Sprintf("pod %s still runs %s", i.Name,
			cmp.Or(strings.Join(i.Running, ", "), "no container, and is being deleted"))
	}
}
