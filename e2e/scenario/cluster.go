package scenario

import (
	"context"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Annotations that users set, and CloudNativePG's hibernation annotation.
const (
	Enabled           = "xata.io/scale-to-zero-enabled"
	InactivityMinutes = "xata.io/scale-to-zero-inactivity-minutes"
	Defaults          = "scale-to-zero.xata.io/defaults"
	DozeMinutes       = "xata.io/scale-to-zero-doze-minutes"
	Activity          = "xata.io/scale-to-zero-activity"
	Ignore            = "xata.io/scale-to-zero-ignore"
	KeepAwake         = "xata.io/scale-to-zero-keep-awake"
	KeepAwakeUntil    = "xata.io/scale-to-zero-keep-awake-until"
	SidecarUpdate     = "xata.io/scale-to-zero-sidecar-update"
	Poolers           = "xata.io/scale-to-zero-poolers"
	PoolerInstances   = "xata.io/scale-to-zero-instances"
	BackupMaxAge      = "xata.io/scale-to-zero-backup-max-age"
	Suspended         = "xata.io/scale-to-zero-suspended"
	WakeBy            = "xata.io/scale-to-zero-wake"
	WakeRequested     = "xata.io/scale-to-zero-wake-requested"
	Announced         = "xata.io/scale-to-zero-announced"
	GatewayReady      = "xata.io/scale-to-zero-gateway-ready"
	Database          = "xata.io/scale-to-zero-database"
	LastWake          = "xata.io/scale-to-zero-last-wake"
	AsleepSince       = "xata.io/scale-to-zero-asleep-since"
	AsleepReason      = "xata.io/scale-to-zero-asleep-reason"
	DozingSince       = "xata.io/scale-to-zero-dozing-since"
	PostgresStopped   = "xata.io/scale-to-zero-postgres-stopped"
	RestartFailed     = "xata.io/scale-to-zero-restart-failed"
	Hibernation       = "cnpg.io/hibernation"
	Fence             = "cnpg.io/fencedInstances"
)

// NewCluster describes a small cluster that lists the plugin and sleeps after the given number of minutes.
func (k *Kubernetes) NewCluster(namespace, name string, instances int, minutes string) *cnpgv1.Cluster {
	return &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Annotations: map[string]string{Enabled: "true", InactivityMinutes: minutes},
		},
		Spec: cnpgv1.ClusterSpec{
			Instances:            instances,
			ImageName:            k.PostgresImage,
			ImagePullPolicy:      "IfNotPresent",
			StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
			Plugins:              []cnpgv1.PluginConfiguration{{Name: PluginName}},
		},
	}
}

// NewScheduledBackup describes a schedule of the cluster; schedule has six fields, beginning with seconds.
func NewScheduledBackup(cluster *cnpgv1.Cluster, name, schedule string) *cnpgv1.ScheduledBackup {
	return &cnpgv1.ScheduledBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name},
		Spec: cnpgv1.ScheduledBackupSpec{
			Schedule: schedule, Cluster: cnpgv1.LocalObjectReference{Name: cluster.Name},
		},
	}
}

// NewPooler describes a PgBouncer of one instance in session mode in front of the cluster's primary; its Service has the
// pooler's name. The image is set in the template, which operators before 1.30 support too.
func (k *Kubernetes) NewPooler(cluster *cnpgv1.Cluster, name string) *cnpgv1.Pooler {
	pooler := &cnpgv1.Pooler{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name},
		Spec: cnpgv1.PoolerSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: cluster.Name}, Type: cnpgv1.PoolerTypeRW,
			PgBouncer: &cnpgv1.PgBouncerSpec{PoolMode: cnpgv1.PgBouncerPoolModeSession},
		},
	}
	if k.PgBouncerImage != "" {
		pooler.Spec.Template = &cnpgv1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "pgbouncer", Image: k.PgBouncerImage}},
		}}
	}
	return pooler
}

// Annotate sets one annotation of a live object; a nil value removes it.
func (k *Kubernetes) Annotate(ctx context.Context, object client.Object, key string, value *string) error {
	text := "null"
	if value != nil {
		text = fmt.Sprintf("%q", *value)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, key, text)
	target := object.DeepCopyObject().(client.Object)
	if err := k.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotate %s with %s: %w", object.GetName(), key, err)
	}
	return nil
}

// Wake turns hibernation off, like a person with kubectl annotate.
func (k *Kubernetes) Wake(ctx context.Context, cluster *cnpgv1.Cluster) error {
	return k.Annotate(ctx, cluster, Hibernation, nil)
}

// Healthy reports whether every instance of the cluster is ready.
func Healthy(c *cnpgv1.Cluster) bool {
	return c.Status.Phase == cnpgv1.PhaseHealthy && c.Status.ReadyInstances == c.Spec.Instances &&
		c.Annotations[Hibernation] != "on" && c.Status.CurrentPrimary == c.Status.TargetPrimary
}

// HibernationOn reports whether hibernation is requested.
func HibernationOn(c *cnpgv1.Cluster) bool { return c.Annotations[Hibernation] == "on" }

// Dozing reports whether PostgreSQL is stopped for a doze.
func Dozing(c *cnpgv1.Cluster) bool { return c.Annotations[PostgresStopped] != "" && !HibernationOn(c) }

// Hibernated reports whether hibernation is complete, by the operator's condition.
func Hibernated(c *cnpgv1.Cluster) bool {
	condition := meta.FindStatusCondition(c.Status.Conditions, Hibernation)
	return condition != nil && condition.Status == metav1.ConditionTrue && condition.Reason == "Hibernated"
}

// AwaitHealthy waits until every instance of the cluster is ready.
func (k *Kubernetes) AwaitHealthy(ctx context.Context, c *cnpgv1.Cluster, within time.Duration) error {
	_, err := k.AwaitCluster(ctx, c, "healthy", within, Healthy)
	return err
}
