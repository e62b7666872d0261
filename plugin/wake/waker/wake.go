package waker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// wake is one search for an instance of a Service, from its first client to its end.
type wake struct {
	*Waker
	service gateway.Service
	client  gateway.Client
	since   time.Time // since when the client that may wake the cluster has waited
	stopped bool      // whether a client has waited while the cluster stopped

	cluster        *cnpgv1.Cluster // as last read
	woke           bool            // whether this search turned hibernation off or lifted the fence
	depth          Depth           // from which the cluster is woken
	patchedVersion string          // the resourceVersion that it patched
	recorded       string          // the value that it wrote to AnnotationLastWake
	unconfirmed    string          // the value of a patch that may have been applied although it failed
	firstProbed    time.Time       // when PostgreSQL was first probed
	accepted       time.Time       // when it was first found to accept sessions, while passwords may have to be set
	direct         time.Time       // since when the Service has led to an instance directly, as far as probes continue
	queue          queue
	phases         phases
	waited         []corev1.Container    // what the pod's PostgreSQL may have waited for
	delay          string                // its cause that was last reported
	explained      time.Time             // when that was last looked for
	late           time.Time             // when it last timed out, while other clients still waited
	signalled      map[netip.Addr]string // by address, the hibernation during which it was signalled

	probed chan probed    // the probe that ends the wait, of those of the current step
	found  netip.AddrPort // the instance that last accepted sessions
}

// find repeats reading the state and acting on it until an instance accepts sessions or no client waits any more.
func (w *wake) find(ctx context.Context) (netip.AddrPort, error) {
	for {
		now := time.Now()
		left := w.searches.left(w.service.UID, now)
		if left <= 0 {
			return netip.AddrPort{}, gateway.ErrTimeout
		}
		if now.Sub(cmp.Or(w.late, w.phases.began)) >= w.Limit { // clients that came later still wait
			w.reportLate()
		}
		changed := w.Notifier.Listen(clusterOf(w.service))
		seen, err := w.read(ctx, w.service)
		wait, address := readAgain, netip.AddrPort{}
		if err == nil {
			address, wait, err = w.advance(ctx, seen)
		}
		if address.IsValid() || isFinal(err) {
			return address, err
		}
		if seen != nil {
			w.explainDelay(ctx, seen, time.Now())
		}
		if err != nil && ctx.Err() == nil {
			w.Logger.Warn("a wake makes no progress", "namespace", w.service.Namespace, "cluster", w.service.Cluster, "error", err.Error())
		}
		if err := w.pause(ctx, min(wait, left), changed); err != nil {
			return netip.AddrPort{}, err
		}
	}
}

// isFinal reports whether the error ends a search. After any other the step is repeated.
func isFinal(err error) bool {
	return slices.ContainsFunc([]error{
		gateway.ErrGone, gateway.ErrMaintenance, gateway.ErrAsleepByHand, gateway.ErrReconnectDirectly, errNobodyWaits,
	}, func(final error) bool { return errors.Is(err, final) })
}

// advance takes the next step, and returns the instance that was found or how long to wait.
func (w *wake) advance(ctx context.Context, seen *snapshot) (found netip.AddrPort, wait time.Duration, err error) {
	w.cluster = seen.cluster
	if w.unconfirmed != "" && seen.cluster.Annotations[contract.AnnotationLastWake] == w.unconfirmed {
		w.wrote(w.unconfirmed, "") // the patch took effect, and only its answer was lost
	}
	do := next(seen.view, len(seen.pods))
	if do != stepAwaitInstance {
		// The results of all probes so far do not matter: the instances are about to be stopped, or have been.
		w.found, w.probed = netip.AddrPort{}, make(chan probed, 1)
		w.firstProbed, w.accepted, w.direct = time.Time{}, time.Time{}, time.Time{}
	}
	switch do {
	case stepAwaitInstance:
		if w.queue.granted { // for this wake; another needs the budget again
			w.leaveQueue()
		}
		return w.probeInstances(ctx, seen)
	case stepWithdraw: // that is no wake, because PostgreSQL runs
		if w.patchedVersion == seen.cluster.ResourceVersion {
			break // the informers have not seen it yet
		}
		if len(w.searches.clients(w.service.UID)) == 0 {
			return found, 0, errNobodyWaits
		}
		if _, err = w.change(ctx, seen, do, w.service, ""); err == nil {
			w.patchedVersion = seen.cluster.ResourceVersion
		}
	case stepAwaitStopped:
		w.depth, w.stopped = DepthDoze, true
	case stepUnfence:
		w.depth = DepthDoze
		wait, err = w.begin(ctx, seen, do)
		return found, wait, err
	case stepAwaitPodsDeleted: // a running instance is about to be shut down and gets no new clients
		w.stopped = true
		w.signalWaiters(ctx, seen)
	case stepGiveUp:
		switch {
		case seen.view.Deleting:
			err = gateway.ErrGone
		case seen.view.Obstacle() == plan.ReasonMaintenance:
			err = gateway.ErrMaintenance
		default:
			err = gateway.ErrAsleepByHand
		}
	case stepEndHibernation:
		w.depth = DepthHibernation
		wait, err = w.begin(ctx, seen, do)
		return found, wait, err
	}
	return found, readAgain, err
}

// begin turns hibernation off or lifts the fence, as soon as one of the clients may wake the cluster.
func (w *wake) begin(ctx context.Context, seen *snapshot, do step) (wait time.Duration, err error) {
	if w.patchedVersion == seen.cluster.ResourceVersion {
		return readAgain, nil // the informers have not seen it yet
	}
	now := time.Now()
	w.phases.stopped = cmp.Or(w.phases.stopped, now)
	by, err := w.mayWake(seen.cluster, now)
	switch {
	case errors.Is(err, errQueued):
		return askBudgetEvery, nil // it waits, and the clients with it
	case err != nil:
		return 0, err
	}
	w.client, w.since = by.Client, by.since
	w.phases.allowed = cmp.Or(w.phases.allowed, now)
	value := w.unconfirmed
	if value == "" {
		if value, err = lastWake(seen.cluster, w.service, w.client, do, w.stopped || returned(seen.cluster, w.since)); err != nil {
			return readAgain, err
		}
	}
	wrote, err := w.change(ctx, seen, do, w.service, value)
	switch {
	case wrote && err != nil:
		w.unconfirmed = value
	case wrote:
		w.wrote(value, seen.cluster.ResourceVersion)
	}
	return readAgain, err
}

// wrote records that this search woke the cluster, with a patch of that resourceVersion that wrote the value.
func (w *wake) wrote(value, from string) {
	w.woke, w.recorded, w.unconfirmed, w.patchedVersion, w.phases.patched = true, value, "", from, time.Now()
	w.ongoing.Change(clusterOf(w.service), func(of *ongoing) bool { of.woken = from; return true })
}

// reachesWithin is how long an instance may be ready for its Service while no probe of this replica reaches it: long
// enough for a whole probe and the pause before it.
const reachesWithin = 2*probeTimeout + answerTimeout + time.Second

// probeInstances starts probes of the instances. If none is known to accept sessions, it returns how long to wait
// before the next ones. It does not wait for the probes, so that the loss of a first packet delays no other probe.
func (w *wake) probeInstances(ctx context.Context, seen *snapshot) (found netip.AddrPort, wait time.Duration, _ error) {
	candidates := seen.candidates()
	if len(candidates) == 0 {
		w.firstProbed = time.Time{}
		return found, pause(0, 0), nil
	}
	if w.firstProbed.IsZero() {
		w.firstProbed = time.Now()
	}
	if w.woke && w.phases.found.IsZero() {
		w.phases.found = time.Now()
	}
	if slices.Contains(candidates, w.found) {
		if w.passwordsPending(ctx, seen, time.Now()) {
			return found, passwordsEvery, nil
		}
		if target := w.target(ctx, seen); target.IsValid() {
			w.phases.ready, w.waited = time.Now(), seen.waitedFor(w.found.Addr())
			return target, 0, nil
		}
	}
	switch direct := !seen.routed() && len(endpointslice.Ready(seen.service, seen.slices)) != 0; {
	case !direct:
		w.direct = time.Time{}
	case w.direct.IsZero():
		w.direct = time.Now()
	case time.Since(w.direct) >= w.NodesWait+reachesWithin:
		w.phases.ready = time.Now()
		return found, 0, gateway.ErrReconnectDirectly
	}
	if !slices.Contains(candidates, w.found) { // otherwise PgBouncer does not accept connections yet
		for _, candidate := range candidates {
			go w.probe(ctx, candidate, w.probed)
		}
	}
	return found, pause(len(candidates), time.Since(w.firstProbed)), nil
}

// probed is the result of a probe: an instance that accepts sessions, or errPanicked.
type probed struct {
	instance netip.AddrPort
	err      error
}

// probe reports an instance that accepts sessions. A panic ends only the search, not the process.
func (w *wake) probe(ctx context.Context, instance netip.AddrPort, to chan<- probed) {
	report := func(err error) {
		select {
		case to <- probed{instance, err}:
		default: // another probe has already reported
		}
	}
	defer func() {
		if caught := recover(); caught != nil {
			w.logPanic(w.service, caught)
			report(errPanicked)
		}
	}()
	if w.Probe(ctx, instance) {
		report(nil)
	}
}

// pause waits until the time has passed, something has changed or an instance accepts sessions. It returns the cause if
// the context has ended, and the error of a probe.
func (w *wake) pause(ctx context.Context, wait time.Duration, changed <-chan struct{}) error {
	if wait < readAgain {
		changed = nil // the state is read soon enough anyway
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case result := <-w.probed:
		w.found = result.instance
		return result.err
	case <-time.After(wait):
	case <-changed:
	}
	return nil
}

// log returns a logger with the Service and the client.
func (w *wake) log() *slog.Logger {
	return w.Logger.With("namespace", w.service.Namespace, "cluster", w.service.Cluster, "service", w.service.Name,
		"peer", w.client.Peer, "user", w.client.User, "database", w.client.Database)
}

// reportLate writes an Event and counts a wake that has timed out, once for each Limit while clients keep coming.
func (w *wake) reportLate() {
	took := time.Since(w.phases.began)
	w.late = time.Now()
	w.Observer.Woke(clusterOf(w.service), contract.CauseConnection, w.depth, ResultTimeout, took)
	w.log().Warn("the cluster did not wake in time", "took", took.String())
	w.warn("WakeTimedOut", strings.TrimSuffix(fmt.Sprintf(
		"Nothing behind Service %s accepted sessions within %s; the next connection tries again: %s",
		w.service.Name, rounded(took), w.delay), ": "))
}

// report writes an Event and counts the wake. A wake that another search carried out is reported by that one.
func (w *wake) report(err error) {
	took := time.Since(w.phases.began)
	cluster, logger := clusterOf(w.service), w.log()
	switch {
	case errors.Is(err, gateway.ErrTimeout), w.woke && errors.Is(err, errNobodyWaits):
		if w.late.IsZero() || time.Since(w.late) >= w.Limit {
			w.reportLate()
		}
	case errors.Is(err, gateway.ErrAsleepByHand):
		w.Observer.Woke(cluster, contract.CauseConnection, w.depth, ResultByHand, took)
		logger.Info("the cluster is not woken: connections do not wake it")
	case errors.Is(err, gateway.ErrMaintenance):
		w.Observer.Woke(cluster, contract.CauseConnection, w.depth, ResultMaintenance, took)
		logger.Warn("the cluster is not woken: the operator might delete volumes during the node maintenance")
	case errors.Is(err, gateway.ErrReconnectDirectly):
		logger.Warn("the cluster is awake, but this replica cannot connect to its instances", "took", took.String())
		w.warn("InstanceUnreachable", fmt.Sprintf(
			"PostgreSQL serves the clients of Service %s, but the plugin's pod cannot connect to it: the clients that waited have to connect again", w.service.Name))
		if !w.woke {
			return
		}
		fallthrough
	case w.woke && err == nil:
		w.Observer.Woke(cluster, contract.CauseConnection, w.depth, ResultSuccess, took)
		stop, queued, patch, pod, postgres := w.phases.durations()
		logger.Info("the cluster was woken", "took", took.String(), "depth", w.depth, "waitedForSleep", stop.String(),
			"queued", queued.String(), "patch", patch.String(), "pod", pod.String(), "postgres", postgres.String())
		go w.recordWoken(w.message(took), time.Now()) // so that the client does not wait for it
	}
}

// message says who woke the cluster, and how long it took.
func (w *wake) message(took time.Duration) string {
	stop, queued, patch, pod, postgres := w.phases.durations()
	if w.depth == DepthDoze {
		return fmt.Sprintf(
			"Woken from a doze by %s through Service %s in %s: PostgreSQL had stopped after %s, the fence was lifted %s later, PostgreSQL accepted sessions %s later",
			whoIs(w.client), w.service.Name, rounded(took), rounded(stop), rounded(patch), rounded(pod+postgres))
	}
	waited := ""
	if rounded(queued) != 0 {
		waited = fmt.Sprintf("the wake waited %s until one of its clients was allowed to wake the cluster, ", rounded(queued))
	}
	return fmt.Sprintf(
		"Woken by %s through Service %s in %s: the operator had deleted every pod after %s, %sthe hibernation annotation was off %s later, a pod had an address %s later, PostgreSQL accepted sessions %s later",
		whoIs(w.client), w.service.Name, rounded(took), rounded(stop), waited, rounded(patch), rounded(pod), rounded(postgres)) + delays(w.waited)
}

// delays says which containers may have delayed the start of PostgreSQL.
func delays(waited []corev1.Container) string {
	var text strings.Builder
	for i := range waited {
		probe := waited[i].StartupProbe
		fmt.Fprintf(&text, "; PostgreSQL's container was started after init container %q, whose startup probe runs every %d s", waited[i].Name, probe.PeriodSeconds)
		if probe.InitialDelaySeconds != 0 {
			fmt.Fprintf(&text, " from %d s on", probe.InitialDelaySeconds)
		}
	}
	return text.String()
}

// recordTimeout limits the writing of an Event.
const recordTimeout = 10 * time.Second

// recordWoken records who woke the cluster. If that fails, the controllers do it later, with less detail.
func (w *wake) recordWoken(message string, now time.Time) {
	ctx, cancel := context.WithTimeout(w.Base, recordTimeout)
	defer cancel()
	if err := w.Events.Write(ctx, w.cluster, plan.Woken(w.recorded, message), now); err != nil {
		w.Logger.Warn("cannot write yet who woke a cluster", "namespace", w.service.Namespace, "cluster", w.service.Cluster, "error", err.Error())
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// whoIs describes a client as far as it is visible.
func whoIs(c gateway.Client) string {
	return contract.LastWake{By: c.Peer.Addr().Unmap().String(), User: c.User, Database: c.Database}.Who()
}

func (w *wake) warn(reason, message string) {
	if w.cluster != nil {
		w.Recorder.Event(w.cluster, corev1.EventTypeWarning, reason, message)
	}
}

// Annotate sets annotations of the Cluster, and removes those without a value. It fails with a conflict if the Cluster
// has changed since it was read.
func Annotate(ctx context.Context, c client.Client, cluster *cnpgv1.Cluster, annotations map[string]*string) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": cluster.ResourceVersion, "annotations": annotations},
	})
	if err != nil {
		return fmt.Errorf("encode the patch of Cluster %s: %w", cluster.Name, err)
	}
	target := &cnpgv1.Cluster{}
	target.Namespace, target.Name = cluster.Namespace, cluster.Name
	if err := c.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(contract.FieldManager)); err != nil {
		return fmt.Errorf("patch Cluster %s: %w", cluster.Name, err)
	}
	return nil
}
