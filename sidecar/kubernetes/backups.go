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
)

const (
	// pageSize is how many objects one request reads, as in kubectl: a namespace may hold thousands of Backups, and the
	// sidecar must stay small. The rate limiter allows a burst of fifty requests and then ten a second, while the answers
	// of other instances expire after two seconds.
	pageSize = 500
	// listTimeout bounds the reading of all pages.
	listTimeout = 10 * time.Second
)

// ended are the final phases of a Backup (1.30: api/v1/backup_types.go). Every other phase, including one added by a
// later operator, counts as running.
var ended = [...]string{"completed", "failed", "invalid backup definition"}

func running(b *Backup, cluster string) bool {
	return b.Spec.Cluster.Name == cluster && !slices.Contains(ended[:], b.Status.Phase)
}

// suspend returns the patch that suspends and marks a schedule, or nil if it is suspended but not by us.
//
// A schedule with our mark is marked again, although it is suspended: a resuming patch whose answer was lost may still
// arrive, and its precondition fails once the resourceVersion has changed.
func suspend(s *ScheduledBackup, mark string) *patch {
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

// resume returns the patch that removes our mark and resumes the schedule, or nil if it has no mark. If a person has
// resumed the schedule, or has become an owner of spec.suspend, only the mark is removed. A person who sets
// spec.suspend to the value that we set leaves no trace in managedFields: such a schedule is resumed.
func resume(s *ScheduledBackup) *patch {
	if _, marked := s.Annotations[contract.AnnotationSuspended]; !marked {
		return nil
	}
	p := &patch{Metadata: changeMark(s, nil)}
	if s.Spec.Suspend && contract.SetByUs(s.ManagedFields, "spec", "suspend") {
		p.Spec = &suspension{Suspend: false}
	}
	return p
}

func changeMark(s *ScheduledBackup, mark *string) patchMetadata {
	return patchMetadata{ResourceVersion: s.ResourceVersion, Annotations: map[string]*string{contract.AnnotationSuspended: mark}}
}

// RunningBackups reads the names of the cluster's running Backups from the API server.
func (c *Client) RunningBackups(ctx context.Context) ([]string, error) {
	var names []string
	err := c.eachOf(ctx, "backups", &BackupList{}, func(object runtime.Object) {
		if b, ok := object.(*Backup); ok && running(b, c.identity.Cluster) {
			names = append(names, b.Name)
		}
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

// SuspendBackups suspends and marks every ScheduledBackup of the cluster that nobody else has suspended. It returns how
// many are known to be suspended by us now, even if it fails halfway.
func (c *Client) SuspendBackups(ctx context.Context, at time.Time) (int, error) {
	mark := at.UTC().Format(time.RFC3339Nano) // unique for each attempt
	return c.eachSchedule(ctx, func(s *ScheduledBackup) *patch { return suspend(s, mark) })
}

// Resumed is the result of ResumeBackups.
type Resumed struct {
	// Changed is the number of schedules whose mark was removed.
	Changed int
	// Left are the names of those that stay suspended because another manager has become an owner of spec.suspend.
	Left []string
}

// ResumeBackups removes our mark from every ScheduledBackup of the cluster and resumes those whose spec.suspend only we
// own. Its result is valid even if it fails halfway. It reads the Cluster first, and fails with [ErrConflict] if that
// hibernates, or if another instance is its primary now: the watch may be late, and the new primary may have suspended
// the schedules for its own sleep.
func (c *Client) ResumeBackups(ctx context.Context) (Resumed, error) {
	var resumed Resumed
	if v, err := c.Get(ctx); err != nil {
		return resumed, err
	} else if v.Hibernating || v.CurrentPrimary != c.identity.Pod {
		return resumed, fmt.Errorf("resume the ScheduledBackups as the primary of an awake cluster: %w", ErrConflict)
	}
	changed, err := c.eachSchedule(ctx, func(s *ScheduledBackup) *patch {
		p := resume(s)
		if p != nil && p.Spec == nil && s.Spec.Suspend {
			resumed.Left = append(resumed.Left, s.Name)
		}
		return p
	})
	resumed.Changed = changed
	return resumed, err
}

// eachSchedule patches every ScheduledBackup of the cluster for which change returns a patch. A failure does not stop
// it from patching the others.
func (c *Client) eachSchedule(ctx context.Context, change func(*ScheduledBackup) *patch) (int, error) {
	patches := map[string]*patch{}
	var names []string
	err := c.eachOf(ctx, "scheduledbackups", &ScheduledBackupList{}, func(object runtime.Object) {
		s, ok := object.(*ScheduledBackup)
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
		if err := c.apply(ctx, "scheduledbackups", name, *patches[name], &ScheduledBackup{}); err != nil {
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
	pages.FullListIfExpired = false // the fallback is one answer with every object
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		visit(object)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, classify(err))
	}
	return nil
}
