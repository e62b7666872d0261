package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watchBackoff spaces the attempts to watch: a cluster must notice soon that the API server is back. The jitter keeps
// the sidecars from reconnecting all at once.
func watchBackoff() wait.Backoff {
	return wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 20, Cap: 10 * time.Second}
}

// Watch calls seen with the Cluster's current state and after every change, until the context ends. While the API
// server is unreachable it retries without end.
func (c *Client) Watch(ctx context.Context, seen func(View)) {
	source := clusterSource{client: c, outage: &outage{logger: c.logger}}
	reflector := cache.NewReflectorWithOptions(source, &Cluster{}, clusterStore(seen),
		cache.ReflectorOptions{Name: "cluster", Backoff: &c.backoff})
	// The source logs failures itself: the Reflector would log a failed list at every attempt, and a failed watch
	// never.
	reflector.RunWithContext(withoutLog(ctx))
}

// clusterSource lists and watches the one Cluster. A Role with resourceNames permits both only with a field selector
// for that name.
type clusterSource struct {
	client *Client
	outage *outage
}

// IsWatchListSemanticsUnSupported makes the Reflector list instead of using a watch list: for one object that saves
// nothing, and an API server before 1.34 would first have to refuse it.
func (clusterSource) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext reads the latest state: an API server's cache may lag and show the Cluster as before its last wake.
func (s clusterSource) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := callContext(ctx)
	defer cancel()
	s.selectCluster(&options)
	options.ResourceVersion = ""
	var list ClusterList
	if err := s.client.list("clusters", &options).Do(ctx).Into(&list); err != nil {
		s.outage.log(err)
		return nil, fmt.Errorf("list the Cluster: %w", err)
	}
	return &list, nil
}

// WatchWithContext opens a watch with a deadline, in case the API server does not end it in time.
func (s clusterSource) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	s.selectCluster(&options)
	options.Watch = true
	lasts := callTimeout
	if options.TimeoutSeconds != nil {
		lasts += time.Duration(*options.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, lasts)
	opened, err := s.client.list("clusters", &options).Watch(ctx)
	if err != nil {
		cancel()
		s.outage.log(err)
		return nil, err // the Reflector distinguishes errors by type
	}
	return boundedWatch{Interface: opened, cancel: cancel}, nil
}

// List is not called: the Reflector prefers ListWithContext.
func (s clusterSource) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch is not called: the Reflector prefers WatchWithContext.
func (s clusterSource) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

func (s clusterSource) selectCluster(options *metav1.ListOptions) {
	options.FieldSelector = "metadata.name=" + s.client.identity.Cluster
}

// boundedWatch is a watch with a deadline.
type boundedWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop ends the watch.
func (w boundedWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

// clusterStore forwards what the Reflector reads, and stores nothing.
type clusterStore func(View)

// Add forwards a Cluster.
func (s clusterStore) Add(object any) error { return s.Update(object) }

// Update forwards a changed Cluster.
func (s clusterStore) Update(object any) error {
	if cluster, ok := object.(*Cluster); ok {
		s(viewOf(cluster))
	}
	return nil
}

// Replace forwards the listed Clusters.
func (s clusterStore) Replace(objects []any, _ string) error {
	for _, object := range objects {
		if err := s.Update(object); err != nil {
			return err
		}
	}
	return nil
}

// Delete does nothing: the pod is deleted with its Cluster.
func (clusterStore) Delete(any) error { return nil }

// Resync does nothing, because nothing is stored.
func (clusterStore) Resync() error { return nil }

// outage logs why the Cluster cannot be watched, repeating the same cause only every repeatAfter.
type outage struct {
	logger *slog.Logger
	mutex  sync.Mutex
	cause  string
	logged time.Time
}

// repeatAfter is when the same cause is logged again.
const repeatAfter = 10 * time.Minute

func (o *outage) log(err error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if cause := err.Error(); cause != o.cause || time.Since(o.logged) >= repeatAfter {
		o.cause, o.logged = cause, time.Now()
		o.logger.Warn("cannot watch the Cluster", "error", cause)
	}
}
