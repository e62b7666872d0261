package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// wakeWithin bounds the wait until hibernation is off.
const wakeWithin = 2 * time.Minute

// crowd connects to many sleeping clusters at once and prints how soon their hibernation was off.
func (f *fleet) crowd(ctx context.Context, p *process) error {
	f.progress.Say("wake %d clusters", f.wakes)
	ports, err := f.ports(ctx)
	if err != nil {
		return err
	}
	changes, err := f.watchClusters(ctx)
	if err != nil {
		return err
	}
	defer changes.Stop()
	clients := &clients{}
	defer clients.close()
	began, wanted := time.Now(), map[string]bool{}
	group, dialing := errgroup.WithContext(ctx)
	for i := range f.wakes {
		name := f.cluster(i * f.clusters / f.wakes).Name
		wanted[name] = true
		port := ports[name+"-rw"]
		group.Go(func() error { return clients.connect(dialing, port) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	connected := time.Since(began)
	woken, err := awaitWoken(ctx, changes, wanted, wakeWithin)
	if err != nil {
		return err
	}
	took, half := woken[f.wakes-1].Sub(began), woken[f.wakes/2].Sub(began)
	row(fmt.Sprintf("%d wakes at once: until every switch was off (s)", f.wakes), "%.2f; half of them %.2f; every client had connected at %.2f",
		took.Seconds(), half.Seconds(), connected.Seconds())
	asked, err := f.requests(began)
	if err != nil {
		return err
	}
	row("... its requests", "%s", summary(asked))
	throttled, _, err := p.says("client-side throttling")
	if err != nil {
		return err
	}
	row("... clients hung up on; lines of its log about throttling by its own client", "%d; %d", clients.lost(), throttled)
	return nil
}

// ports are the gateway's, by Service; the names are the whole fleet's own.
func (f *fleet) ports(ctx context.Context) (map[string]int32, error) {
	var slices discoveryv1.EndpointSliceList
	if err := f.admin.List(ctx, &slices, ours); err != nil {
		return nil, fmt.Errorf("list the slices: %w", err)
	}
	ports := map[string]int32{}
	for _, slice := range slices.Items {
		ports[slice.Labels[discoveryv1.LabelServiceName]] = *slice.Ports[0].Port
	}
	return ports, nil
}

// watchClusters watches the Clusters from now on.
func (f *fleet) watchClusters(ctx context.Context) (watch.Interface, error) {
	var clusters metav1.PartialObjectMetadataList
	clusters.SetGroupVersionKind(cnpgv1.SchemeGroupVersion.WithKind("ClusterList"))
	if err := f.admin.List(ctx, &clusters, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("list the Clusters: %w", err)
	}
	changes, err := f.admin.Watch(ctx, &clusters, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: clusters.ResourceVersion}})
	if err != nil {
		return nil, fmt.Errorf("watch the Clusters: %w", err)
	}
	return changes, nil
}

// awaitWoken waits until hibernation is off for all clusters of these names, and returns the times at which each was, in order.
func awaitWoken(ctx context.Context, changes watch.Interface, wanted map[string]bool, within time.Duration) ([]time.Time, error) {
	limited, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("hibernation of not every cluster is off within %s", within))
	defer cancel()
	waiting := maps.Clone(wanted)
	var woken []time.Time
	for len(waiting) > 0 {
		select {
		case <-limited.Done():
			return nil, fmt.Errorf("%w: %d of %d", context.Cause(limited), len(woken), len(wanted))
		case change, open := <-changes.ResultChan():
			if !open {
				return nil, fmt.Errorf("the watch ended with %d of %d", len(woken), len(wanted))
			}
			object, is := change.Object.(*metav1.PartialObjectMetadata)
			if is && waiting[object.Name] && change.Type == watch.Modified && object.Annotations[scenario.Hibernation] == "" {
				delete(waiting, object.Name)
				woken = append(woken, time.Now())
			}
		}
	}
	return woken, nil
}

// clients are connections that wait.
type clients struct {
	mutex sync.Mutex
	open  []net.Conn
}

// connect asks for a session as a client without TLS does.
func (c *clients) connect(ctx context.Context, port int32) error {
	packet, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "app", "database": "app"},
	}).Encode(nil)
	if err != nil {
		return fmt.Errorf("encode a startup packet: %w", err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("connect to the gateway: %w", err)
	}
	c.mutex.Lock()
	c.open = append(c.open, conn)
	c.mutex.Unlock()
	if _, err := conn.Write(packet); err != nil {
		return fmt.Errorf("ask for a session: %w", err)
	}
	return nil
}

// lost counts the connections that the gateway has closed or answered.
func (c *clients) lost() int {
	lost := 0
	for _, conn := range c.open {
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			lost++
		}
	}
	return lost
}

func (c *clients) close() {
	for _, conn := range c.open {
		_ = conn.Close()
	}
}
