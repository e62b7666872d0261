// Package waker wakes clusters for their clients, and finds the instance that serves them.
//
// One wake goes on for a Service however many clients wait, and one turns the switch off however many Services' clients
// wait; across replicas the API server sees to that, since the switch is turned off only on the state that was read. It is
// never turned off before the operator has deleted every pod, nor where a person put the cluster to sleep.
package waker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	wakeslices "github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
)

// Result is how a wake ended.
type Result string

// The results.
const (
	// ResultSuccess says that an instance accepts sessions.
	ResultSuccess Result = "success"
	// ResultTimeout says that none did in time.
	ResultTimeout Result = "timeout"
	// ResultByHand says that only people wake the cluster.
	ResultByHand Result = "by_hand"
)

// Observer is told how each wake ended, and how long it took from its first client on.
type Observer interface {
	Woke(result Result, took time.Duration)
}

// ErrGone says that there is no such Service or Cluster.
var ErrGone = errors.New("the Service or its Cluster is gone")

// Waker is the gateway's [gateway.Director].
type Waker struct {
	// Informers are read; Live reads from the API server, and Client writes to it.
	Informers informers.Reader
	Live      client.Reader
	Client    client.Client
	// Bell rings when something of a cluster has changed.
	Bell *Bell
	// Knock asks an instance whether it accepts sessions; it is [Knock] outside of tests.
	Knock func(context.Context, netip.AddrPort) bool
	// HTTP tells sidecars; it is of [NewHTTP] outside of tests.
	HTTP *http.Client
	// Journal tells who woke a cluster, Recorder writes other Events, Observer counts, Logger tells.
	Journal  *Journal
	Recorder record.EventRecorder
	Observer Observer
	Logger   *slog.Logger
	// Allowed are the addresses of clients that are served.
	Allowed []netip.Prefix
	// Limit is how long a wake may take.
	Limit time.Duration
	// Base ends every wake when it ends.
	Base context.Context //nolint:containedctx // a wake outlives the client that began it, and not the plugin

	finding, switching singleflight.Group
}

var _ gateway.Director = (*Waker)(nil)

func clusterOf(service gateway.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: service.Namespace, Name: service.Cluster}
}

// Refuses tells whether a client is not served, whatever it wants. What cannot be read speaks against nobody.
func (w *Waker) Refuses(service gateway.Service, peer netip.AddrPort) gateway.Refusal {
	address := peer.Addr().Unmap()
	if !slices.ContainsFunc(w.Allowed, func(p netip.Prefix) bool { return p.Contains(address) }) {
		return gateway.RefusalNotAllowed
	}
	pods, err := w.Informers.PodsAt(w.Base, service.Namespace, address)
	if err == nil && slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
		return wakeslices.IsInstance(&pod) && pod.Labels[wakeslices.LabelCluster] == service.Cluster
	}) {
		return gateway.RefusalInstance
	}
	cluster, err := w.Informers.Cluster(w.Base, clusterOf(service))
	if err != nil {
		return ""
	}
	for _, pattern := range plan.View(cluster, time.Now()).Policy.Ignore {
		if pattern.MatchesUnseen(address) {
			return gateway.RefusalIgnored
		}
	}
	return ""
}

// Running are the instances behind the Service that accept sessions now, by what the kubelet says. It never wakes.
func (w *Waker) Running(service gateway.Service) []netip.AddrPort {
	seen, err := w.look(w.Base, service)
	if err != nil {
		return nil
	}
	return seen.ready()
}

// SendsAway tells whether sessions must not come from the gateway's address. While that cannot be read, they must not.
func (w *Waker) SendsAway(service gateway.Service) bool {
	seen, err := w.look(w.Base, service)
	return err != nil || seen.sendsAway()
}

// Resolve wakes the cluster if it sleeps, and returns an instance behind the Service that accepts sessions. Errors are
// [gateway.ErrAsleepByHand], [gateway.ErrReconnect], [gateway.ErrTimeout], [ErrGone] and those of the context.
func (w *Waker) Resolve(ctx context.Context, service gateway.Service, client gateway.Client) (netip.AddrPort, error) {
	found := w.finding.DoChan(string(service.UID), func() (any, error) { //nolint:contextcheck // the search is everybody's who waits, not this client's
		limited, cancel := context.WithTimeoutCause(w.Base, w.Limit, gateway.ErrTimeout)
		defer cancel()
		wake := &wake{Waker: w, service: service, client: client, phases: phases{began: time.Now()}}
		address, err := wake.find(limited)
		wake.report(err)
		return address, err
	})
	select {
	case <-ctx.Done():
		return netip.AddrPort{}, ctx.Err()
	case result := <-found:
		address, _ := result.Val.(netip.AddrPort)
		return address, result.Err
	}
}

// look reads what is known of the Service and its cluster.
func (w *Waker) look(ctx context.Context, service gateway.Service) (*sight, error) {
	name := clusterOf(service)
	cluster, err := w.Informers.Cluster(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	seen := &sight{cluster: cluster, view: plan.View(cluster, time.Now())}
	services, err := w.Informers.Services(ctx, name)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(services, func(s corev1.Service) bool { return s.UID == service.UID })
	if at < 0 {
		return nil, fmt.Errorf("find Service %s/%s: %w", service.Namespace, service.Name, ErrGone)
	}
	seen.service = &services[at]
	if seen.pods, err = w.Informers.Pods(ctx, name); err != nil {
		return nil, err
	}
	seen.slices, err = w.Informers.Slices(ctx, name)
	return seen, err
}

// switchOff turns the switch off, on the state that was read, and returns what it wrote of who woke the cluster, nothing if it
// was not this call that did. Meanwhile another replica or a person may have, or may have had a different wish: then nothing is
// written.
func (w *Waker) switchOff(ctx context.Context, seen *sight, service gateway.Service, client gateway.Client) (string, error) {
	told := "" // of this call: another that waits for it has written nothing
	_, err, _ := w.switching.Do(clusterOf(service).String(), func() (any, error) {
		value, err := lastWake(service, client)
		if err != nil {
			return nil, err
		}
		cluster, pods := seen.cluster, len(seen.pods)
		for next(plan.View(cluster, time.Now()), pods) == stepSwitch {
			err := w.patch(ctx, cluster, value)
			if err == nil {
				told = value
			}
			if !apierrors.IsConflict(err) {
				return nil, err
			}
			cluster = new(cnpgv1.Cluster)
			if err := w.Live.Get(ctx, clusterOf(service), cluster); err != nil {
				return nil, fmt.Errorf("read Cluster %s: %w", clusterOf(service), err)
			}
		}
		return nil, nil
	})
	return told, err
}
