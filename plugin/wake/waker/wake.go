package waker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	wakeslices "github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// wake is one search for an instance of a Service, from its first client to its end.
type wake struct {
	*Waker
	service gateway.Service
	client  gateway.Client

	cluster *cnpgv1.Cluster // as it was last seen
	woke    bool            // it was this search that turned the switch off
	from    string          // the resourceVersion on which it did
	told    string          // what it wrote into the annotation that tells who woke the cluster
	asked   time.Time       // when PostgreSQL was first asked
	phases  phases
}

// answer is how a search ends.
type answer struct {
	address netip.AddrPort
	err     error
}

// find looks, and does what is to be done, until an instance accepts sessions.
func (w *wake) find(ctx context.Context) (netip.AddrPort, error) {
	for {
		changed := w.Bell.Listen(clusterOf(w.service))
		seen, err := w.look(ctx, w.service)
		if errors.Is(err, ErrGone) {
			return netip.AddrPort{}, err
		}
		wait := lookAgain
		if err == nil {
			var answer *answer
			if answer, wait, err = w.advance(ctx, seen); answer != nil {
				return answer.address, answer.err
			}
		}
		if err != nil && ctx.Err() == nil {
			w.Logger.Warn("a wake does not get on", "namespace", w.service.Namespace, "cluster", w.service.Cluster, "error", err.Error())
		}
		if err := pauseFor(ctx, wait, changed); err != nil {
			return netip.AddrPort{}, err
		}
	}
}

// advance does the next thing, and says how the search ends or how long to wait. An error is no end: it is tried again.
func (w *wake) advance(ctx context.Context, seen *sight) (*answer, time.Duration, error) {
	w.cluster = seen.cluster
	wait, found := w.ask(ctx, seen)
	if found != nil {
		return found, 0, nil
	}
	switch next(seen.view, len(seen.pods)) {
	case stepAwait, stepHold:
	case stepGiveUp:
		return &answer{err: gateway.ErrAsleepByHand}, 0, nil
	case stepSwitch:
		if w.woke && w.from == seen.cluster.ResourceVersion {
			break // the informers have not told yet
		}
		w.phases.hibernated = time.Now()
		told, err := w.switchOff(ctx, seen, w.service, w.client)
		if err != nil {
			return nil, wait, err
		}
		if told != "" {
			w.woke, w.told, w.from, w.phases.switched = true, told, seen.cluster.ResourceVersion, time.Now()
		}
	}
	return nil, wait, nil
}

// ask asks the instances, and says how long to wait before asking again if none accepts sessions.
func (w *wake) ask(ctx context.Context, seen *sight) (time.Duration, *answer) {
	if seen.sendsAway() {
		if !seen.view.Switched && len(wakeslices.Ready(seen.service, seen.slices)) != 0 {
			w.phases.ready = time.Now()
			return 0, &answer{err: gateway.ErrReconnect}
		}
		return pause(0, 0), nil
	}
	candidates := seen.candidates()
	if len(candidates) == 0 {
		w.asked = time.Time{}
		return pause(0, 0), nil
	}
	if w.asked.IsZero() {
		w.asked = time.Now()
	}
	if w.woke && w.phases.found.IsZero() {
		w.phases.found = time.Now()
	}
	for _, candidate := range candidates {
		if w.Knock(ctx, candidate) {
			w.phases.ready = time.Now()
			return 0, &answer{address: candidate}
		}
	}
	return pause(len(candidates), time.Since(w.asked)), nil
}

// pauseFor waits until the time has passed or something has changed. It returns the cause of the context's end.
func pauseFor(ctx context.Context, wait time.Duration, changed <-chan struct{}) error {
	if wait == askOften {
		changed = nil // it is asked soon enough
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-changed:
	}
	return nil
}

// report writes an Event and counts. A wake that another search carried out is that one's to report.
func (w *wake) report(err error) {
	took := time.Since(w.phases.began)
	logger := w.Logger.With("namespace", w.service.Namespace, "cluster", w.service.Cluster, "service", w.service.Name,
		"peer", w.client.Peer, "user", w.client.User, "database", w.client.Database)
	switch {
	case errors.Is(err, gateway.ErrTimeout):
		w.Observer.Woke(ResultTimeout, took)
		logger.Warn("the cluster did not wake in time", "took", took)
		w.event(corev1.EventTypeWarning, "WakeTimedOut", fmt.Sprintf(
			"No instance behind Service %s accepted sessions within %s; the next connection tries again", w.service.Name, w.Limit))
	case errors.Is(err, gateway.ErrAsleepByHand):
		w.Observer.Woke(ResultByHand, took)
		logger.Info("the cluster is not woken: only people wake it")
	case w.woke && (err == nil || errors.Is(err, gateway.ErrReconnect)):
		w.Observer.Woke(ResultSuccess, took)
		hold, patch, pod, postgres := w.phases.durations()
		logger.Info("the cluster was woken", "took", took, "waitedForHibernated", hold, "patch", patch, "pod", pod, "postgres", postgres)
		message := fmt.Sprintf(
			"Woken by %s through Service %s in %s: the operator had deleted every pod after %s, the switch was off %s later, a pod had an address %s later, PostgreSQL accepted sessions %s later",
			whoIs(w.client), w.service.Name, rounded(took), rounded(hold), rounded(patch), rounded(pod), rounded(postgres))
		go w.tell(message, time.Now()) // the client does not wait for it
	}
}

// tellTakes bounds the writing of an Event.
const tellTakes = 10 * time.Second

// tell writes who woke the cluster. What cannot be written the controllers write later, with less to say.
func (w *wake) tell(message string, now time.Time) {
	ctx, cancel := context.WithTimeout(w.Base, tellTakes)
	defer cancel()
	if err := w.Journal.write(ctx, w.cluster, w.told, message, now); err != nil {
		w.Logger.Warn("who woke a cluster cannot be told yet", "namespace", w.service.Namespace, "cluster", w.service.Cluster, "error", err.Error())
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// maximumName is how long PostgreSQL's own names are, in bytes; what a client claims may be longer.
const maximumName = 63

func shorten(name string) string { return strings.ToValidUTF8(name[:min(len(name), maximumName)], "") }

// whoIs describes a client as far as it can be seen.
func whoIs(c gateway.Client) string { return who(c.Peer.Addr().Unmap().String(), c.User, c.Database) }

// who describes the client of an address; what TLS hides is empty.
func who(address, user, database string) string {
	if user == "" {
		return address
	}
	return fmt.Sprintf("%s (user %q, database %q)", address, shorten(user), shorten(cmp.Or(database, user)))
}

func (w *wake) event(kind, reason, message string) {
	if w.cluster != nil {
		w.Recorder.Event(w.cluster, kind, reason, message)
	}
}

// lastWake is what the annotation says of a wake.
func lastWake(service gateway.Service, by gateway.Client) (string, error) {
	return plan.LastWake{
		At: time.Now(), By: by.Peer.Addr().Unmap().String(), User: shorten(by.User), Database: shorten(by.Database), Service: service.Name,
	}.Encode()
}

// patch turns the switch off, in one patch with what goes with it, on the state that was read.
func (w *Waker) patch(ctx context.Context, cluster *cnpgv1.Cluster, lastWake string) error {
	return Annotate(ctx, w.Client, cluster, map[string]*string{
		idle.KeyHibernation: nil, idle.KeyAsleepSince: nil, idle.KeyAsleepReason: nil, idle.KeyAnnounced: nil, idle.KeyGatewayReady: nil,
		idle.KeySleepRequested: nil, // of somebody who has been refused since
		idle.KeyLastWake:       &lastWake,
	})
}

// Annotate sets annotations of the Cluster, and removes those without a value. It fails with a conflict if the Cluster is no
// longer the one that was read.
func Annotate(ctx context.Context, c client.Client, cluster *cnpgv1.Cluster, annotations map[string]*string) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": cluster.ResourceVersion, "annotations": annotations},
	})
	if err != nil {
		return fmt.Errorf("encode the patch of Cluster %s: %w", cluster.Name, err)
	}
	target := &cnpgv1.Cluster{}
	target.Namespace, target.Name = cluster.Namespace, cluster.Name
	if err := c.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(plan.FieldManager)); err != nil {
		return fmt.Errorf("patch Cluster %s: %w", cluster.Name, err)
	}
	return nil
}
