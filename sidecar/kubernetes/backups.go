package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

const (
	// pageSize is how many objects are read at once: a namespace may hold thousands of Backups, and the sidecar must stay
	// small.
	pageSize = 100
	// listTimeout bounds the reading of all pages.
	listTimeout = 10 * time.Second
)

// page is the part of a list that is decoded.
type page[T any] struct {
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

// ownedBy is the part of a Backup and a ScheduledBackup that says whose it is.
type ownedBy struct {
	Cluster struct {
		Name string `json:"name"`
	} `json:"cluster"`
}

// backup is the part of a Backup that is decoded.
type backup struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec   ownedBy `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// ended are the phases from which a Backup does not come back (1.30: api/v1/backup_types.go). Every other phase, one that
// a later operator adds included, is taken as running.
var ended = []string{"completed", "failed", "invalid backup definition"}

func (b *backup) running(cluster string) bool {
	return b.Spec.Cluster.Name == cluster && !slices.Contains(ended, b.Status.Phase)
}

// schedule is the part of a ScheduledBackup that is decoded.
type schedule struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		ownedBy
		Suspend bool `json:"suspend"`
	} `json:"spec"`
}

// suspend is the patch that suspends and marks, nil if it is suspended.
func (s *schedule) suspend(mark string) *patch {
	if s.Spec.Suspend {
		return nil
	}
	return &patch{Metadata: s.mark(&mark), Spec: &suspension{Suspend: true}}
}

// resume is the patch that resumes what carries our mark and removes the mark, nil without a mark. One that a person
// resumed meanwhile only loses the mark.
func (s *schedule) resume() *patch {
	if _, marked := s.Metadata.Annotations[idle.KeySuspended]; !marked {
		return nil
	}
	p := &patch{Metadata: s.mark(nil)}
	if s.Spec.Suspend {
		p.Spec = &suspension{Suspend: false}
	}
	return p
}

func (s *schedule) mark(mark *string) patchMetadata {
	return patchMetadata{
		ResourceVersion: s.Metadata.ResourceVersion,
		Annotations:     map[string]*string{idle.KeySuspended: mark},
	}
}

// RunningBackups returns the names of the cluster's Backups that have not ended, from the API server.
func (c *Client) RunningBackups(ctx context.Context) ([]string, error) {
	running, err := list(ctx, c, "backups", func(b *backup) bool { return b.running(c.identity.Cluster) })
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range running {
		names = append(names, running[i].Metadata.Name)
	}
	return names, nil
}

// SuspendBackups suspends and marks every ScheduledBackup of the cluster that is not suspended. It returns how many it
// suspended, also when it failed half-way.
func (c *Client) SuspendBackups(ctx context.Context, at time.Time) (int, error) {
	mark := at.UTC().Format(time.RFC3339)
	return c.eachSchedule(ctx, func(s *schedule) *patch { return s.suspend(mark) })
}

// ResumeBackups resumes every ScheduledBackup of the cluster that carries the mark, and removes the mark. One that a
// person resumed meanwhile only loses the mark. It returns how many it changed, also when it failed half-way.
func (c *Client) ResumeBackups(ctx context.Context) (int, error) {
	return c.eachSchedule(ctx, (*schedule).resume)
}

// eachSchedule applies what change returns to every ScheduledBackup of the cluster, each on the state that it was read in.
// One that cannot be changed does not keep the others from it.
func (c *Client) eachSchedule(ctx context.Context, change func(*schedule) *patch) (int, error) {
	own, err := list(ctx, c, "scheduledbackups", func(s *schedule) bool { return s.Spec.Cluster.Name == c.identity.Cluster })
	if err != nil {
		return 0, err
	}
	changed := 0
	var failures []error
	for i := range own {
		p := change(&own[i])
		if p == nil {
			continue
		}
		if err := c.apply(ctx, "scheduledbackups", own[i].Metadata.Name, *p); err != nil {
			failures = append(failures, err)
			continue
		}
		changed++
	}
	return changed, errors.Join(failures...)
}

// list reads the objects of a resource that are wanted, page by page.
func list[T any](ctx context.Context, c *Client, resource string, wanted func(*T) bool) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var found []T
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for {
		body, err := c.get(ctx, c.resource(resource), query)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource, err)
		}
		items, next, err := decodePage(body, wanted)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource, err)
		}
		found = append(found, items...)
		if next == "" {
			return found, nil
		}
		query.Set("continue", next)
	}
}

// decodePage returns the wanted objects of a page and the token of the next one, empty after the last.
func decodePage[T any](body []byte, wanted func(*T) bool) ([]T, string, error) {
	var p page[T]
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, "", fmt.Errorf("decode: %w", err)
	}
	kept := slices.DeleteFunc(p.Items, func(item T) bool { return !wanted(&item) })
	return kept, p.Metadata.Continue, nil
}
