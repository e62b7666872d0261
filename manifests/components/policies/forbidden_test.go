package policies

import (
	"context"
	"fmt"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// write is a patch that a pod sends.
type write struct {
	rule, pod string
	object    client.Object
	patch     string
	// says is a part of the refusal; [byRole]: RBAC refuses, else a policy. Empty where several do, of which one is heard.
	says string
}

func nightly(cluster string) *cnpgv1.ScheduledBackup {
	return &cnpgv1.ScheduledBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: cluster + "-nightly"}}
}

const (
	byRole      = "cannot patch resource"
	notPrimary  = "only from the pod that is its current primary"
	noSpec      = "may not change the specification of their Cluster"
	noAnnotated = "may not change the annotation "
	noOtherPod  = "only of their own pod"
	onlyAll     = `cnpg.io/fencedInstances of their Cluster to ["*"]`
	onlySuspend = "nothing of the specification of a ScheduledBackup but suspend"
	onlyOwn     = "ScheduledBackups of their own cluster only"
	onlyPrimary = "only from the pod that is the current primary of its cluster"
)

// forbidden is what an instance could do if it were not for RBAC and the policies. A person may do all of it.
func forbidden() []write {
	orders, asleep := cluster("shop", "orders", ""), `{"metadata":{"annotations":{"cnpg.io/hibernation":"on"}}}`
	annotation := func(key, value string) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value)
	}
	return []write{
		{"that another pod failed", "orders-2", orders, annotation("xata.io/scale-to-zero-restart-failed", `"x"`), noOtherPod},
		{"another image", "orders-2", orders, `{"spec":{"imageName":"example.org/evil:17"}}`, noSpec},
		{"another plugin", "orders-2", orders, `{"spec":{"plugins":[{"name":"evil.example.org"}]}}`, noSpec},
		{"no plugin", "orders-2", orders, `{"spec":{"plugins":null}}`, noSpec},
		{"more instances", "orders-2", orders, `{"spec":{"instances":9}}`, noSpec},
		{"more storage", "orders-2", orders, `{"spec":{"storage":{"size":"1Ti"}}}`, noSpec},
		{"superuser access", "orders-2", orders, `{"spec":{"enableSuperuserAccess":true}}`, noSpec},
		{"a parameter of PostgreSQL", "orders-2", orders, `{"spec":{"postgresql":{"parameters":{"shared_buffers":"1GB"}}}}`, noSpec},
		{"lines of pg_hba", "orders-2", orders, `{"spec":{"postgresql":{"pg_hba":["host all all all trust"]}}}`, noSpec},
		{"an environment variable", "orders-2", orders, `{"spec":{"env":[{"name":"A","value":"b"}]}}`, noSpec},
		{"a Secret in the environment", "orders-2", orders, `{"spec":{"envFrom":[{"secretRef":{"name":"other"}}]}}`, noSpec},
		{"projected volumes", "orders-2", orders, `{"spec":{"projectedVolumeTemplate":{"sources":[{"secret":{"name":"other"}}]}}}`, noSpec},
		{"where backups go", "orders-2", orders, `{"spec":{"backup":{"barmanObjectStore":{"destinationPath":"s3://evil"}}}}`, noSpec},
		{"a managed role", "orders-2", orders, `{"spec":{"managed":{"roles":[{"name":"evil","superuser":true}]}}}`, noSpec},
		{"another service account", "orders-2", orders, `{"spec":{"serviceAccountName":"default"}}`, noSpec},
		{"one key of its own and something else", "orders-2", orders, `{"metadata":{"annotations":{"cnpg.io/hibernation":"on"}},"spec":{"instances":9}}`, noSpec},
		{"a label", "orders-2", orders, `{"metadata":{"labels":{"team":"blue"}}}`, "labels"},
		{"all labels", "orders-2", orders, `{"metadata":{"labels":null}}`, "labels"},
		{"no finalizers", "orders-2", orders, `{"metadata":{"finalizers":null}}`, "finalizers"},
		{"a finalizer", "orders-2", orders, `{"metadata":{"finalizers":["example.org/keep","example.org/evil"]}}`, "finalizers"},
		{"an owner", "orders-2", orders, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`, "owners"},
		{"the feature's annotation", "orders-2", orders, annotation(contract.AnnotationEnabled, `"false"`), noAnnotated + contract.AnnotationEnabled},
		{"the feature's annotation away", "orders-2", orders, annotation(contract.AnnotationEnabled, `null`), noAnnotated + contract.AnnotationEnabled},
		{"the threshold", "orders-2", orders, annotation(contract.AnnotationInactivityMinutes, `"1"`), noAnnotated + contract.AnnotationInactivityMinutes},
		{"what counts as activity", "orders-2", orders, annotation(contract.AnnotationActivity, `"queries"`), noAnnotated + contract.AnnotationActivity},
		{"sessions that never count", "orders-2", orders, annotation(contract.AnnotationIgnore, `"user=app"`), noAnnotated + contract.AnnotationIgnore},
		{"times without sleep", "orders-2", orders, annotation(contract.AnnotationKeepAwake, `"Mon 08:00-09:00 UTC"`), noAnnotated + contract.AnnotationKeepAwake},
		{"how it is woken", "orders-2", orders, annotation(contract.AnnotationWake, `"manual"`), noAnnotated + contract.AnnotationWake},
		{"whether addresses are told apart", "orders-2", orders, annotation(contract.AnnotationGatewayAddress, `"accept"`), noAnnotated + contract.AnnotationGatewayAddress},
		{"the database of the channel", "orders-2", orders, annotation(contract.AnnotationDatabase, `""`), noAnnotated + contract.AnnotationDatabase},
		{"when a new sidecar comes", "orders-2", orders, annotation(contract.AnnotationSidecarUpdate, `"immediate"`), noAnnotated + contract.AnnotationSidecarUpdate},
		{"the acknowledgement", "orders-2", orders, annotation(contract.AnnotationGatewayReady, `"uid 2026"`), noAnnotated + contract.AnnotationGatewayReady},
		{"who woke it", "orders-2", orders, annotation(contract.AnnotationLastWake, `"nobody"`), noAnnotated + contract.AnnotationLastWake},
		{"the mark of ScheduledBackups on a Cluster", "orders-2", orders, annotation(contract.AnnotationSuspended, `"x"`), noAnnotated + contract.AnnotationSuspended},
		{"the acknowledgement that the gateway holds", "orders-2", orders, annotation(contract.AnnotationGatewayHolding, `"uid 2026 doze"`), noAnnotated + contract.AnnotationGatewayHolding},
		{"when it dozes", "orders-2", orders, annotation(contract.AnnotationDozeMinutes, `"1"`), noAnnotated + contract.AnnotationDozeMinutes},
		{"a fence of one instance", "orders-2", orders, annotation(contract.AnnotationFencedInstances, `"[\"orders-1\"]"`), onlyAll},
		{"a fence of nothing", "orders-2", orders, annotation(contract.AnnotationFencedInstances, `""`), onlyAll},
		{"a fence that is written in another way", "orders-2", orders, annotation(contract.AnnotationFencedInstances, `"[ \"*\" ]"`), onlyAll},
		{"a fence, from a replica", "orders-1", orders, annotation(contract.AnnotationFencedInstances, `"[\"*\"]"`), notPrimary},
		{"an end of reconciliation", "orders-2", orders, annotation("cnpg.io/reconciliationLoop", `"disabled"`), noAnnotated + "cnpg.io/reconciliationLoop"},
		{"somebody's annotation", "orders-2", orders, annotation("example.org/note", `"y"`), noAnnotated + "example.org/note"},
		{"somebody's annotation away", "orders-2", orders, annotation("example.org/note", `null`), noAnnotated + "example.org/note"},
		{"hibernation, from a replica", "orders-1", orders, asleep, notPrimary},
		{"an announcement, from a replica", "orders-1", orders, annotation(contract.AnnotationAnnounced, `"x"`), notPrimary},
		{"an image, from a replica", "orders-1", orders, `{"spec":{"imageName":"example.org/evil:17"}}`, ""},
		{"hibernation, from a pod of somebody with the account", "stray", orders, asleep, notPrimary},
		{"another cluster", "orders-2", cluster("shop", "payments", ""), asleep, byRole},
		{"a cluster of another namespace with its name", "orders-2", cluster("vault", "orders", ""), asleep, byRole},
		{"another cluster that shares the account", "ledger-2", cluster("shop", "ledger-b", ""), asleep, notPrimary},
		{"another cluster's image that shares the account", "ledger-2", cluster("shop", "ledger-b", ""), `{"spec":{"imageName":"example.org/evil:17"}}`, ""},
		{"another cluster's ScheduledBackup", "orders-2", nightly("payments"), `{"spec":{"suspend":true}}`, onlyOwn},
		{"the mark on another cluster's ScheduledBackup", "orders-2", nightly("payments"), annotation(contract.AnnotationSuspended, `"x"`), onlyOwn},
		{"the ScheduledBackup of a cluster that shares the account", "ledger-2", nightly("ledger-b"), `{"spec":{"suspend":true}}`, ""},
		{"the ScheduledBackup of a cluster whose name goes on", "ledger-2", nightly("ledger-2"), `{"spec":{"suspend":true}}`, ""},
		{"the ScheduledBackup of a cluster whose name is shorter", "ledger-2-2", nightly("ledger"), `{"spec":{"suspend":true}}`, ""},
		{"its ScheduledBackup from a replica", "orders-1", nightly("orders"), `{"spec":{"suspend":true}}`, onlyPrimary},
		{"its ScheduledBackup from a pod of somebody with the account", "stray", nightly("orders"), `{"spec":{"suspend":true}}`, ""},
		{"a schedule", "orders-2", nightly("orders"), `{"spec":{"schedule":"0 0 0 1 1 *"}}`, onlySuspend},
		{"a Backup at once", "orders-2", nightly("orders"), `{"spec":{"immediate":true}}`, onlySuspend},
		{"how it is backed up", "orders-2", nightly("orders"), `{"spec":{"method":"volumeSnapshot"}}`, onlySuspend},
		{"whose the Backups are", "orders-2", nightly("orders"), `{"spec":{"backupOwnerReference":"self"}}`, onlySuspend},
		{"a suspension and a schedule", "orders-2", nightly("orders"), `{"spec":{"suspend":true,"schedule":"0 0 0 1 1 *"}}`, onlySuspend},
		{"somebody's annotation of a ScheduledBackup", "orders-2", nightly("orders"), annotation("example.org/note", `null`), noAnnotated + "example.org/note"},
		{"a label of a ScheduledBackup", "orders-2", nightly("orders"), `{"metadata":{"labels":{"a":"b"}}}`, "labels"},
		{"a finalizer of a ScheduledBackup", "orders-2", nightly("orders"), `{"metadata":{"finalizers":["example.org/evil"]}}`, "finalizers"},
		{"an owner of a ScheduledBackup", "orders-2", nightly("orders"), `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`, "owners"},
		{"a Secret", "orders-2", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}}, `{"data":{"a":"Yg=="}}`, byRole},
		{"its own Role", "orders-2", &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders.scale-to-zero"}}, `{"rules":[]}`, byRole},
		{"its own RoleBinding", "orders-2", &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders.scale-to-zero"}}, `{"subjects":[]}`, byRole},
		{"a pod", "orders-2", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders-1"}}, `{"metadata":{"labels":{"a":"b"}}}`, byRole},
	}
}

func (w write) try(ctx context.Context, c client.Client, options ...client.PatchOption) error {
	return c.Patch(ctx, w.object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(w.patch)), options...)
}
