package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// patchOf is the body of a merge patch; a nil annotation is removed.
type patchOf struct {
	Metadata struct {
		ResourceVersion string             `json:"resourceVersion,omitempty"`
		Annotations     map[string]*string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec *suspension `json:"spec,omitempty"`
}

type suspension struct {
	Suspend bool `json:"suspend"`
}

// Hibernate turns the switch on and says why and since when, in one patch that fails with [ErrConflict] if the Cluster is
// no longer the one of the view.
func (c *Client) Hibernate(ctx context.Context, v View, at time.Time, reason string) error {
	on, since := "on", at.UTC().Format(time.RFC3339)
	var patch patchOf
	patch.Metadata.ResourceVersion = v.ResourceVersion
	patch.Metadata.Annotations = map[string]*string{
		idle.KeyHibernation: &on, idle.KeyAsleepSince: &since, idle.KeyAsleepReason: &reason,
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode the switch: %w", err)
	}
	return c.patch(ctx, "clusters", c.identity.Cluster, body)
}

// RunningBackups returns the names of the cluster's Backups that have not ended, from the API server.
func (c *Client) RunningBackups(ctx context.Context) ([]string, error) {
	body, err := c.list(ctx, "backups", "")
	if err != nil {
		return nil, err
	}
	return runningBackups(body, c.identity.Cluster)
}

// ended are the phases from which a Backup does not come back (1.30: api/v1/backup_types.go). Every other phase, one that
// a later operator adds included, is taken as running.
var ended = []string{"completed", "failed", "invalid backup definition"}

func runningBackups(body []byte, cluster string) ([]string, error) {
	var found struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				Cluster struct {
					Name string `json:"name"`
				} `json:"cluster"`
			} `json:"spec"`
			Status struct {
				Phase string `json:"phase"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return nil, fmt.Errorf("decode the Backups: %w", err)
	}
	var running []string
	for _, backup := range found.Items {
		if backup.Spec.Cluster.Name == cluster && !slices.Contains(ended, backup.Status.Phase) {
			running = append(running, backup.Metadata.Name)
		}
	}
	return running, nil
}

// schedule is the part of a ScheduledBackup that is decoded.
type schedule struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Suspend bool `json:"suspend"`
		Cluster struct {
			Name string `json:"name"`
		} `json:"cluster"`
	} `json:"spec"`
}

func (s *schedule) marked() bool {
	_, marked := s.Metadata.Annotations[idle.KeySuspended]
	return marked
}

// SuspendBackups suspends and marks every ScheduledBackup of the cluster that is not suspended. It returns how many it
// suspended, also when it failed half-way.
func (c *Client) SuspendBackups(ctx context.Context, at time.Time) (int, error) {
	mark := at.UTC().Format(time.RFC3339)
	return c.eachSchedule(ctx, func(s *schedule) *patchOf {
		if s.Spec.Suspend {
			return nil
		}
		return &patchOf{Spec: &suspension{Suspend: true}, Metadata: marks(&mark)}
	})
}

// ResumeBackups resumes every ScheduledBackup of the cluster that carries the mark, and removes the mark. One that a
// person resumed meanwhile only loses the mark. It returns how many it changed, also when it failed half-way.
func (c *Client) ResumeBackups(ctx context.Context) (int, error) {
	return c.eachSchedule(ctx, func(s *schedule) *patchOf {
		if !s.marked() {
			return nil
		}
		patch := &patchOf{Metadata: marks(nil)}
		if s.Spec.Suspend {
			patch.Spec = &suspension{Suspend: false}
		}
		return patch
	})
}

func marks(mark *string) (metadata struct {
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
}) {
	metadata.Annotations = map[string]*string{idle.KeySuspended: mark}
	return metadata
}

// eachSchedule applies what change returns to every ScheduledBackup of the cluster, each on the state that it was read in.
// One that cannot be changed does not keep the others from it.
func (c *Client) eachSchedule(ctx context.Context, change func(*schedule) *patchOf) (int, error) {
	body, err := c.list(ctx, "scheduledbackups", "")
	if err != nil {
		return 0, err
	}
	var found struct {
		Items []schedule `json:"items"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return 0, fmt.Errorf("decode the ScheduledBackups: %w", err)
	}
	changed := 0
	var failures []error
	for i := range found.Items {
		s := &found.Items[i]
		if s.Spec.Cluster.Name != c.identity.Cluster {
			continue
		}
		patch := change(s)
		if patch == nil {
			continue
		}
		patch.Metadata.ResourceVersion = s.Metadata.ResourceVersion
		body, err := json.Marshal(patch)
		if err != nil {
			return changed, fmt.Errorf("encode the patch of a ScheduledBackup: %w", err)
		}
		if err := c.patch(ctx, "scheduledbackups", s.Metadata.Name, body); err != nil {
			failures = append(failures, err)
			continue
		}
		changed++
	}
	return changed, errors.Join(failures...)
}
