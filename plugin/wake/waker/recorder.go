package waker

import (
	"context"
	"fmt"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// reasonWoken is the reason of the Event that says who woke a cluster.
const reasonWoken = "Woken"

// WakeRecorder writes an Event that says who woke a cluster. A wake is identified by the annotation that its patch wrote, so that
// the replica that turned hibernation off and one that survived it write the same Event.
type WakeRecorder struct {
	Events events.Writer

	recorded sync.Map // by cluster, the annotation value that has an Event
}

// Recorded reports whether this replica knows of an Event for the wake with this annotation value.
func (j *WakeRecorder) Recorded(cluster types.NamespacedName, lastWake string) bool {
	recorded, _ := j.recorded.Load(cluster)
	return recorded == lastWake
}

// Forget drops what is known about the cluster.
func (j *WakeRecorder) Forget(cluster types.NamespacedName) { j.recorded.Delete(cluster) }

// Woken writes the Event for a wake that another replica, or this one before a restart, began but did not report. lastWake is the
// annotation's value, and wake its parsed form.
func (j *WakeRecorder) Woken(ctx context.Context, cluster *cnpgv1.Cluster, lastWake string, wake contract.LastWake, now time.Time) error {
	from := ""
	if wake.Depth == contract.DepthDoze {
		from = " from a doze"
	}
	return j.write(ctx, cluster, lastWake, fmt.Sprintf(
		"Woken%s by %s through Service %s; how long it took is unknown, because the plugin's pod stopped first",
		from, who(wake.By, wake.User, wake.Database), wake.Service), now)
}

func (j *WakeRecorder) write(ctx context.Context, cluster *cnpgv1.Cluster, lastWake, message string, now time.Time) error {
	event := events.Event{Reason: reasonWoken, Message: message, Occasion: lastWake}
	if err := j.Events.Write(ctx, cluster, event, now); err != nil {
		return err
	}
	j.recorded.Store(client.ObjectKeyFromObject(cluster), lastWake)
	return nil
}
