package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes/api"
	"github.com/cnpg-i/scale-to-zero/sidecar/ownership"
)

const (
	// pageSize is how many objects are read at once: a namespace may hold thousands of Backups, and the sidecar must stay
	// small.
	pageSize = 100
	// listTimeout bounds the reading of all pages.
	listTimeout = 10 * time.Second
)

// ended are the phases from which a Backup does not come back (1.30: api/v1/backup_types.go). Every other phase, one that
// a later operator adds included, is taken as running.
var ended = [...]string{"completed", "failed", "invalid backup definition"}

func running(b *api.Backup, cluster string) bool {
	return b.Spec.Cluster.Name == cluster && !slices.Contains(ended[:], b.Status.Phase)
}

// suspend is the patch that suspends and marks a schedule, nil if somebody else has suspended it.
//
// One that carries our mark is marked anew, although it is suspended: a resuming patch whose answer was lost may still be on
// its way, and its precondition fails once the object has another resourceVersion.
func suspend(s *api.ScheduledBackup, mark string) *patch {
	_, marked := s.Annotations[contract.AnnotationSuspended]
	switch {
	case !s.Spec.Suspend:
		return &patch{Metadata: changeMark(s, &mark), Spec: &suspension{Suspend: true}}
	case marked:
		return &patch{Metadata: changeMark(s, &mark)}
	default:
		return nil
	}
}

// resume is the patch that removes our mark, nil without one, and that resumes what is suspended by us alone. One that a
// person resumed, or came to own the suspension of, loses the mark only. A person who patches a schedule that we suspended
// with the same value leaves no trace in Kubernetes: it is resumed.
func resume(s *api.ScheduledBackup) *patch {
	if _, marked := s.Annotations[contract.AnnotationSuspended]; !marked {
		return nil
	}
	p := &patch{Metadata: changeMark(s, nil)}
	if s.Spec.Suspend && ownership.SetByUs(s.ManagedFields, "spec", "suspend") {
		p.Spec = &suspension{Suspend: false}
	}
	return p
}

func changeMark(s *api.ScheduledBackup, mark *string) patchMetadata {
	return patchMetadata{ResourceVersion: s.ResourceVersion, Annotations: map[string]*string{contract.AnnotationSuspended: mark}}
}

// RunningBackups returns the names of the cluster's Backups that have not ended, from the API server.
func (c *Client) RunningBackups(ctx context.Context) ([]string, error) {
	var names []string
	err := c.eachOf(ctx, "backups", &api.BackupList{}, func(object runtime.Object) {
		if b, ok := object.(*api.Backup); ok && running(b, c.identity.Cluster) {
			names = append(names, b.Name)
		}
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

// SuspendBackups suspends and marks every ScheduledBackup of the cluster that nobody else has suspended. It returns how many
// are suspended by us now, as far as is known, also when it failed half-way.
func (c *Client) SuspendBackups(ctx context.Context, at time.Time) (int, error) {
	mark := at.UTC().Format(time.RFC3339Nano) // no two attempts write the same
	return c.eachSchedule(ctx, func(s *api.ScheduledBackup) *patch { return suspend(s, mark) })
}

// Resumed is what became of the ScheduledBackups that carried our mark.
type Resumed struct {
	// Changed is how many carry it no more.
	Changed int
	// Left are the names of those that stay suspended, since somebody else has come to own that.
	Left []string
}

// ResumeBackups removes the mark from every ScheduledBackup of the cluster that carries it, and resumes those whose suspension
// is still ours alone. What it returns holds also when it failed half-way.
func (c *Client) ResumeBackups(ctx context.Context) (Resumed, error) {
	var resumed Resumed
	changed, err := c.eachSchedule(ctx, func(s *api.ScheduledBackup) *patch {
		p := resume(s)
		if p != nil && p.Spec == nil && s.Spec.Suspend {
			resumed.Left = append(resumed.Left, s.Name)
		}
		return p
	})
	resumed.Changed = changed
	return resumed, err
}

// eachSchedule applies what change returns to every ScheduledBackup of the cluster, each on the state that it was read in.
// One that cannot be changed does not keep the others from it.
func (c *Client) eachSchedule(ctx context.Context, change func(*api.ScheduledBackup) *patch) (int, error) {
	patches := map[string]*patch{}
	var names []string
	err := c.eachOf(ctx, "scheduledbackups", &api.ScheduledBackupList{}, func(object runtime.Object) {
		s, ok := object.(*api.ScheduledBackup)
		if !ok || s.Spec.Cluster.Name != c.identity.Cluster {
			return
		}
		if p := change(s); p != nil {
			names, patches[s.Name] = append(names, s.Name), p
		}
	})
	if err != nil {
		return 0, err
	}
	changed := 0
	var failures []error
	for _, name := range names {
		if err := c.apply(ctx, "scheduledbackups", name, *patches[name], &api.ScheduledBackup{}); err != nil {
			failures = append(failures, err)
			continue
		}
		changed++
	}
	return changed, errors.Join(failures...)
}

// eachOf calls visit for every object of a resource in the namespace, page by page.
func (c *Client) eachOf(ctx context.Context, resource string, page runtime.Object, visit func(runtime.Object)) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		ctx, cancel := callContext(ctx)
		defer cancel()
		into := page.DeepCopyObject()
		return into, c.list(resource, &options).Do(ctx).Into(into)
	})
	pages.PageSize, pages.PageBufferSize = pageSize, 0
	pages.FullListIfExpired = false // it would be all of it in one answer
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		visit(object)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, classify(err))
	}
	return nil
}
