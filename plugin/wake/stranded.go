package wake

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// reasonsInWords say why connections do not wake a sleeping cluster any more.
var reasonsInWords = map[plan.Reason]string{
	plan.ReasonNotListed: "the Cluster does not list the plugin any more",
	plan.ReasonInvalid:   "an annotation is not understood",
	plan.ReasonDisabled:  "the feature was turned off",
	plan.ReasonManual:    "the annotation " + idle.KeyWake + " says manual",
}

// tellStranded writes an Event that says how to wake the cluster by hand. Its name depends on the sleep and the reason, so
// that one of the replicas writes it, once.
func (c *Controller) tellStranded(ctx context.Context, cluster *cnpgv1.Cluster, reason plan.Reason, now time.Time) error {
	if cluster == nil {
		return nil
	}
	kind, err := apiutil.GVKForObject(cluster, c.Client.Scheme())
	if err != nil {
		return fmt.Errorf("tell what kind a Cluster is: %w", err)
	}
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%s %s %s", cluster.UID, cluster.Annotations[idle.KeyAsleepSince], reason)
	at := metav1.NewTime(now)
	err = c.Client.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + ".stranded-" + strconv.FormatUint(hash.Sum64(), 36)},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: cluster.Namespace, Name: cluster.Name, UID: cluster.UID,
			ResourceVersion: cluster.ResourceVersion,
		},
		Type: corev1.EventTypeNormal, Reason: "WakesByHandOnly",
		Message: fmt.Sprintf("The cluster sleeps and connections do not wake it any more: %s. To wake it: kubectl annotate -n %s clusters.%s %s %s-",
			reasonsInWords[reason], cluster.Namespace, kind.Group, cluster.Name, idle.KeyHibernation),
		Source: corev1.EventSource{Component: plan.FieldManager, Host: c.Settings.Replica.Pod}, ReportingController: plan.FieldManager,
		ReportingInstance: c.Settings.Replica.Pod, FirstTimestamp: at, LastTimestamp: at, Count: 1,
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create an Event on Cluster %s: %w", cluster.Name, err)
	}
	return nil
}
