package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// Look is an annotation without a meaning: a change of it makes the sidecar sample and decide.
	Look = "example.org/look"
	// toDecide bounds the wait for a decision of a sidecar that is told to look every lookEvery.
	toDecide  = 2 * time.Minute
	lookEvery = 2 * time.Second
)

// StaysAwake watches the cluster for the threshold, and from then on until the primary's sidecar has decided that this reason keeps it
// awake. The error is ErrSlept if hibernation is turned on meanwhile, or sleep announced.
func (k *Kubernetes) StaysAwake(ctx context.Context, c *cnpgv1.Cluster, threshold time.Duration, reason string) error {
	return k.staysAwake(ctx, c, threshold, toDecide, reason)
}

// errNeverDecided means that something else kept the cluster awake, or nothing did.
var errNeverDecided = errors.New("the sidecar did not decide so")

func (k *Kubernetes) staysAwake(ctx context.Context, c *cnpgv1.Cluster, threshold, within time.Duration, reason string) error {
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	decided := "decided " + time.Now().Format(time.RFC3339Nano)
	go func() {
		err := k.keptAwakeBy(watching, c, time.Now().Add(threshold), within, reason)
		if err == nil {
			err = k.Annotate(watching, c, Look, &decided) // every earlier change of the Cluster is watched before this one
		}
		if err != nil {
			stop(err)
		}
	}()
	slept, before := false, c.Annotations[Announced]
	err := k.follow(watching, &cnpgv1.ClusterList{}, c.Namespace, fields.OneTermEqualSelector("metadata.name", c.Name), func(event watch.Event) bool {
		seen, is := event.Object.(*cnpgv1.Cluster)
		if !is {
			return false
		}
		announced := seen.Annotations[Announced]
		slept = HibernationOn(seen) || announced != "" && announced != before
		return slept || seen.Annotations[Look] == decided
	})
	if slept {
		return ErrSlept
	}
	return err
}

// keptAwakeBy waits until the primary's sidecar has decided after that time, and with the threshold passed, that this reason keeps the
// cluster awake.
func (k *Kubernetes) keptAwakeBy(ctx context.Context, c *cnpgv1.Cluster, after time.Time, within time.Duration, reason string) error {
	if err := Rest(ctx, time.Until(after)); err != nil {
		return err
	}
	for deadline := time.Now().Add(within); ; {
		now := time.Now().Format(time.RFC3339Nano)
		if err := k.Annotate(ctx, c, Look, &now); err != nil {
			return err
		}
		var report struct {
			DecidedAt time.Time `json:"decidedAt"`
			Blockers  []string  `json:"blockers"`
		}
		page, err := k.Page(ctx, c.Namespace, c.Status.CurrentPrimary, "9189", "activity")
		if err == nil {
			err = json.Unmarshal([]byte(page), &report)
		}
		waiting, named := slices.Contains(report.Blockers, "waiting"), slices.Contains(report.Blockers, reason)
		if err == nil && report.DecidedAt.After(after) && named && !waiting {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%w: that %s keeps cluster %s awake %s after the threshold: %s", errNeverDecided, reason, c.Name, within, page), err)
		}
		if err := Rest(ctx, lookEvery); err != nil {
			return err
		}
	}
}
