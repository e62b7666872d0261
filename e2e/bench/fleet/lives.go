package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// armWithin bounds every wait for the whole fleet.
	armWithin = 15 * time.Minute
	// quietFor is how long the plugin must have written nothing to be at rest.
	quietFor = 5 * time.Second
)

var (
	kindSlice = schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSliceList"}
	ours      = client.MatchingLabels{discoveryv1.LabelManagedBy: "scale-to-zero.cnpg-i.io"}
)

// lives takes the plugin from its first start through rest, a restart of its container, its replacement by another pod and a
// crowd of clients.
func (f *fleet) lives(ctx context.Context) error {
	pod, err := f.pod(ctx, "scale-to-zero-1")
	if err != nil {
		return err
	}
	first, err := f.start(pod, "plugin-1.log")
	if err != nil {
		return err
	}
	if err := f.armed(ctx, "first start: ports are given, slices and listeners made", first, f.clusters*led); err != nil {
		return err
	}
	if err := f.quiet(ctx, first); err != nil {
		return err
	}
	if err := f.atRest(ctx, "after the first start", first); err != nil {
		return err
	}
	if err := first.kill(); err != nil {
		return err
	}
	again, err := f.start(pod, "plugin-2.log")
	if err != nil {
		return err
	}
	if err := f.armed(ctx, "killed and restarted in the same pod: the slices are there", again, f.clusters*led); err != nil {
		return err
	}
	if err := f.kill(ctx, again); err != nil {
		return err
	}
	other, err := f.another(ctx, "scale-to-zero-2", "plugin-3.log")
	if err != nil {
		return err
	}
	if err := f.atRest(ctx, "at rest", other); err != nil {
		return err
	}
	if err := f.crowd(ctx, other); err != nil {
		return err
	}
	if err := f.defaults(ctx); err != nil {
		return err
	}
	return f.kill(ctx, other)
}

// kill ends the plugin without notice, and deletes its pod.
func (f *fleet) kill(ctx context.Context, p *process) error {
	if err := p.kill(); err != nil {
		return err
	}
	if err := f.admin.Delete(ctx, p.pod, client.GracePeriodSeconds(0)); err != nil {
		return fmt.Errorf("delete the plugin's pod: %w", err)
	}
	return nil
}

// another starts the plugin in another pod, and returns it once it is at rest.
func (f *fleet) another(ctx context.Context, name, log string) (*process, error) {
	pod, err := f.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	p, err := f.start(pod, log)
	if err != nil {
		return nil, err
	}
	if err := f.armed(ctx, "another pod: the ports are known, slices and listeners made", p, f.clusters*led); err != nil {
		return nil, err
	}
	return p, f.quiet(ctx, p)
}

// armed waits until every Service has its listener and its slice, and prints how long that took.
func (f *fleet) armed(ctx context.Context, what string, p *process, want int) error {
	have, checked := 0, time.Now()
	err := until(ctx, fmt.Sprintf("%s: %d listeners", what, want), armWithin, 250*time.Millisecond, func() (bool, error) {
		var err error
		if have, err = p.listening(); err != nil {
			return false, err
		}
		if time.Since(checked) > 10*time.Second {
			checked = time.Now()
			f.progress.Say("%d of %d listeners", have, want)
		}
		return have >= want, nil
	})
	if err != nil {
		return fmt.Errorf("%w (there are %d)", err, have)
	}
	err = until(ctx, what, time.Minute, 500*time.Millisecond, func() (bool, error) {
		leading, err := f.leading(ctx, p.pod)
		return leading >= want, err
	})
	if err != nil {
		return err
	}
	took := time.Since(p.began)
	asked, err := f.requests(p.began)
	if err != nil {
		return err
	}
	last := p.began
	for _, r := range asked {
		if r.Call.Resource == "endpointslices" && r.Call.Verb == "create" && r.Received.After(last) {
			last = r.Received
		}
	}
	row(what+" (s)", "%.1f", took.Seconds())
	if created := last.Sub(p.began); created > 0 {
		row("... of it until the last slice was made (s)", "%.1f", created.Seconds())
	}
	row("... its requests", "%s", summary(asked))
	if count, first, err := p.says(`"level":"ERROR"`); err != nil || count != 0 {
		row("... errors it logged", "%d, the first: %s", count, first)
		return err
	}
	return nil
}

// leading counts the slices that lead to a pod.
func (f *fleet) leading(ctx context.Context, pod *corev1.Pod) (int, error) {
	var slices metav1.PartialObjectMetadataList
	slices.SetGroupVersionKind(kindSlice)
	if err := f.admin.List(ctx, &slices, ours, client.MatchingLabels{"scale-to-zero.cnpg-i.io/replica": string(pod.UID)}); err != nil {
		return 0, fmt.Errorf("list the slices: %w", err)
	}
	return len(slices.Items), nil
}

// quiet waits until the plugin writes nothing any more.
func (f *fleet) quiet(ctx context.Context, p *process) error {
	err := until(ctx, "the plugin comes to rest", armWithin, quietFor/2, func() (bool, error) {
		recent, err := f.requests(time.Now().Add(-quietFor))
		return len(writes(recent)) == 0, err
	})
	row("... until nothing was written any more (s)", "%.0f", (time.Since(p.began) - quietFor).Seconds())
	return err
}

// atRest prints what the plugin needs while nothing happens.
func (f *fleet) atRest(ctx context.Context, when string, p *process) error {
	f.progress.Say("watch the plugin at rest")
	pid := p.command.Process.Pid
	before, err := scenario.ProcessorTime(pid)
	if err != nil {
		return err
	}
	from := time.Now()
	if err := scenario.Rest(ctx, f.rest); err != nil {
		return err
	}
	after, err := scenario.ProcessorTime(pid)
	if err != nil {
		return err
	}
	asked, err := f.requests(from)
	if err != nil {
		return err
	}
	resident, anonymous, most, err := scenario.Memory(pid)
	if err != nil {
		return err
	}
	row(when+": resident memory (MiB)", "%.0f, of it anonymous %.0f; the most so far %.0f", resident, anonymous, most)
	row("... processor (% of a core)", "%.2f over %s", 100*(after-before).Seconds()/time.Since(from).Seconds(), f.rest)
	row("... writes to the API server", "%d; requests: %s", len(writes(asked)), summary(asked))
	row("... file descriptors", "%d of "+strconv.Itoa(descriptors()), p.openDescriptors())
	return nil
}
