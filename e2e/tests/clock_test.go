package tests

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A keep-awake window that opens and a request wake a cluster to which no client connects, from hibernation and from a doze.
func TestWakesWithoutAClient(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, asleep)
	s.annotate(c, scenario.WakeBy, "on-connect,window")
	s.annotate(c, scenario.KeepAwake, opensSoon())
	s.wokenFor(c, "Woken from hibernation for keep-awake window of ")
	s.annotate(c, scenario.InactivityMinutes, soon)
	s.blockedBy(c, "keep_awake_window")

	s.must(kube.Annotate(s.ctx, c, scenario.KeepAwake, nil))
	s.sleeps(c)
	s.annotate(c, scenario.WakeRequested, time.Now().UTC().Format(time.RFC3339))
	s.wokenFor(c, "Woken from hibernation for request of ")
	s.annotate(c, scenario.InactivityMinutes, soon)
	s.blockedBy(c, "keep_awake_until")
}

func TestDoze_endsForAWindow(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	s.dozes(c)
	s.annotate(c, scenario.WakeBy, "on-connect,window")
	s.annotate(c, scenario.KeepAwake, opensSoon())
	s.wokenFor(c, "Woken from a doze for keep-awake window of ")
	s.awakeAgain(c)
}

// A Database that is made or deleted wakes its cluster, which sleeps again a minute later, long before the threshold.
func TestObjectsWakeTheirCluster(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, asleep)
	database := s.database(c)
	s.wokenFor(c, "Woken from hibernation for Database "+database.Name)
	s.applied(database)
	if !s.sleepsUnused(c) {
		s.Log("the cluster slept after the threshold, because notifications may have been missed")
	}
	s.hibernated(c)

	s.must(kube.Delete(s.ctx, database))
	s.must(kube.AwaitGone(s.ctx, &cnpgv1.DatabaseList{}, c.Namespace, database.Name, toHealthy))
}

func TestDoze_endsForADatabase(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	s.dozes(c)
	database := s.database(c)
	s.wokenFor(c, "Woken from a doze for Database "+database.Name)
	s.annotate(c, scenario.DozeMinutes, dozesLater) // what failed while it dozed is tried again within 30 seconds
	s.applied(database)
	s.must(kube.Delete(s.ctx, database))
	s.must(kube.AwaitGone(s.ctx, &cnpgv1.DatabaseList{}, c.Namespace, database.Name, toHealthy))
}

// A ScheduledBackup that is due wakes its cluster, which sleeps again once the Backup is completed, long before the threshold.
func TestWakesForABackup(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	neighbour := s.otherPlugin(scenario.Neighbour{Name: askedBefore + s.namespace, Image: image})
	neighbour.IsWALArchiver = ptr.To(true)
	c := kube.NewCluster(s.namespace, "scheduled", 1, never)
	c.Spec.Plugins = append(c.Spec.Plugins, neighbour)
	s.running(c)
	s.annotate(c, scenario.WakeBy, "on-connect,backup")
	schedule := scenario.NewScheduledBackup(c, "often", "0 */3 * * * *")
	schedule.Spec.Method, schedule.Spec.PluginConfiguration = cnpgv1.BackupMethodPlugin, takes(neighbour.Name, time.Second)
	s.must(kube.Create(s.ctx, schedule))
	s.sleeps(c)
	before := backups(s, schedule)

	_, err := kube.AwaitEventSaying(s.ctx, c, "Woken", "Woken from hibernation for ScheduledBackup often", 4*time.Minute+toSettle)
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.resumed(schedule)
	if !s.sleepsUnused(c) {
		s.Log("the cluster slept after the threshold, because notifications may have been missed")
	}
	s.hibernated(c)
	if after := backups(s, schedule); after == before {
		t.Error("no Backup was made")
	}
	var list cnpgv1.BackupList
	s.must(kube.List(s.ctx, &list, client.InNamespace(s.namespace)))
	for i := range list.Items {
		if phase := list.Items[i].Status.Phase; phase != cnpgv1.BackupPhaseCompleted {
			t.Errorf("Backup %s is %s", list.Items[i].Name, phase)
		}
	}
}

// A sleeping cluster whose last Backup becomes too old is woken, gets one of the same kind, and sleeps again. Its Backup is made
// older, because the annotation takes no less than an hour.
func TestWakesForTheAgeOfABackup(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	neighbour := s.otherPlugin(scenario.Neighbour{Name: askedBefore + s.namespace, Image: image})
	neighbour.IsWALArchiver = ptr.To(true)
	c := kube.NewCluster(s.namespace, "aged", 1, never)
	c.Spec.Plugins = append(c.Spec.Plugins, neighbour)
	s.running(c)
	first := &cnpgv1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "first"},
		Spec: cnpgv1.BackupSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: c.Name}, Method: cnpgv1.BackupMethodPlugin, Target: cnpgv1.BackupTargetPrimary,
			PluginConfiguration: takes(neighbour.Name, time.Second),
		},
	}
	s.must(kube.Create(s.ctx, first))
	_, err := scenario.Await(s.ctx, kube, first, "completed", toHealthy, func(b *cnpgv1.Backup) bool {
		return b.Status.Phase == cnpgv1.BackupPhaseCompleted
	})
	s.must(err)
	s.sleeps(c)
	s.hibernated(c)
	s.lastBackedUp(c, first, time.Hour-5*time.Second)
	s.annotate(c, scenario.BackupMaxAge, "1h")

	_, err = kube.AwaitEventSaying(s.ctx, c, "Woken", "Woken from hibernation for backup-max-age", toHealthy)
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	if !s.sleepsUnused(c) {
		s.Log("the cluster slept after the threshold, because notifications may have been missed")
	}
	s.hibernated(c)
	var list cnpgv1.BackupList
	s.must(kube.List(s.ctx, &list, client.InNamespace(s.namespace)))
	if len(list.Items) != 2 {
		t.Fatalf("%d Backups, want the first and one of the plugin's", len(list.Items))
	}
	for i := range list.Items {
		backup := &list.Items[i]
		if backup.Status.Phase != cnpgv1.BackupPhaseCompleted || !equality.Semantic.DeepEqual(backup.Spec, first.Spec) {
			t.Errorf("Backup %s is %s: %+v", backup.Name, backup.Status.Phase, backup.Spec)
		}
	}
}

// lastBackedUp sets the statuses of the Cluster and of the Backup as if the Backup had completed that long ago.
func (s *story) lastBackedUp(c *cnpgv1.Cluster, backup *cnpgv1.Backup, ago time.Duration) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	changed := c.DeepCopy()
	condition := meta.FindStatusCondition(changed.Status.Conditions, string(cnpgv1.ConditionBackup))
	if condition == nil || condition.Status != metav1.ConditionTrue {
		s.Fatalf("the condition %s is %+v", cnpgv1.ConditionBackup, condition)
	}
	condition.LastTransitionTime = metav1.NewTime(time.Now().Add(-ago))
	patch := client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{})
	s.must(kube.Status().Patch(s.ctx, changed, patch))
	old := fmt.Appendf(nil, `{"status":{"stoppedAt":%q}}`, condition.LastTransitionTime.UTC().Format(time.RFC3339))
	s.must(kube.Status().Patch(s.ctx, backup.DeepCopy(), client.RawPatch(types.MergePatchType, old)))
}

// database asks for a database that is dropped with its object.
func (s *story) database(c *cnpgv1.Cluster) *cnpgv1.Database {
	s.Helper()
	database := &cnpgv1.Database{Spec: cnpgv1.DatabaseSpec{
		ClusterRef: corev1.LocalObjectReference{Name: c.Name}, Name: "later", Owner: "app", ReclaimPolicy: cnpgv1.DatabaseReclaimDelete,
	}}
	database.Namespace, database.Name = c.Namespace, c.Name+"-later"
	s.must(kube.Create(s.ctx, database))
	return database
}

// applied waits until an instance has applied the Database.
func (s *story) applied(database *cnpgv1.Database) {
	s.Helper()
	_, err := scenario.Await(s.ctx, kube, database, "applied", toHealthy, func(d *cnpgv1.Database) bool {
		return d.Status.Applied != nil && *d.Status.Applied && d.Status.ObservedGeneration == d.Generation
	})
	s.must(err)
}

// A connection wakes a cluster that a tool listed in WAKE_HIBERNATED_BY has hibernated.
func TestAnotherToolsHibernation(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	const setting, tool = "WAKE_HIBERNATED_BY", "sablier"
	t.Cleanup(func() { s.ctx = cleanup(t); d.setEnvironment(s.plugin(), corev1.EnvVar{Name: setting}) })
	d.setEnvironment(s.plugin(), corev1.EnvVar{Name: setting, Value: tool})
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+scenario.Hibernation+`":"on"}}}`))
	s.must(kube.Patch(s.ctx, c, patch, client.FieldOwner(tool)))
	s.hibernated(c)
	_, err := kube.AwaitEventSaying(s.ctx, c, "HibernationAdopted", tool, toSettle)
	s.must(err)
	s.awaitSlices(c, toSettle, "rw", "r")
	s.answers(c)
}

// A program that may patch the Cluster wakes it at the plugin's endpoint, and asks there until it is awake.
func TestWakeEndpoint(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	const name, setting = "wake-endpoint", "WAKE_ENDPOINT_ADDRESS"
	caller := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: c.Namespace, Name: name}
	plugin := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: scenario.OperatorNamespace, Name: "cnpg-scale-to-zero-plugin"}
	named := metav1.ObjectMeta{Namespace: c.Namespace, Name: name}
	account := &corev1.ServiceAccount{ObjectMeta: named}
	for _, object := range []client.Object{
		account,
		&rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{cnpgGroup}, Resources: []string{"clusters"}, ResourceNames: []string{c.Name}, Verbs: []string{"get", "patch"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: []rbacv1.Subject{caller},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "cnpg-scale-to-zero-wake-endpoint"}, Subjects: []rbacv1.Subject{plugin},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		},
	} {
		s.must(kube.Create(s.ctx, object))
		t.Cleanup(func() { _ = kube.Delete(cleanup(t), object) })
	}
	t.Cleanup(func() { s.ctx = cleanup(t); d.setEnvironment(s.plugin(), corev1.EnvVar{Name: setting}) })
	d.setEnvironment(s.plugin(), corev1.EnvVar{Name: setting, Value: ":8443"})
	s.sleeps(c)

	token := &authenticationv1.TokenRequest{}
	s.must(kube.SubResource("token").Create(s.ctx, account, token))
	ask := s.endpoint(c, token.Status.Token)
	if status, state := ask(http.MethodGet); status != http.StatusOK || state != "asleep" {
		t.Errorf("GET answers %d, %s", status, state)
	}
	if status, state := ask(http.MethodPost); status != http.StatusAccepted {
		t.Errorf("POST answers %d, %s", status, state)
	}
	s.wokenFor(c, "Woken from hibernation for request of ")
	if status, state := ask(http.MethodGet); status != http.StatusOK || state != "awake" {
		t.Errorf("GET answers %d, %s", status, state)
	}
}

// endpoint returns what asks the endpoint of a replica of the plugin for the cluster, with a token, and verifies its certificate.
func (s *story) endpoint(c *cnpgv1.Cluster, token string) (ask func(method string) (status int, state string)) {
	s.Helper()
	var secret corev1.Secret
	s.must(kube.Get(s.ctx, types.NamespacedName{Namespace: scenario.OperatorNamespace, Name: "scaletozero-server-tls"}, &secret))
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(secret.Data["ca.crt"])
	replica := s.replicas()[0]
	address, end, err := forwarded(s.ctx, replica.Namespace, replica.Name, 8443)
	s.must(err)
	s.Cleanup(end)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority, ServerName: "scale-to-zero." + scenario.OperatorNamespace + ".svc"}}
	return func(method string) (int, string) {
		s.Helper()
		page := "https://" + address + "/v1/namespaces/" + c.Namespace + "/clusters/" + c.Name + "/wake"
		request, err := http.NewRequestWithContext(s.ctx, method, page, nil)
		s.must(err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := (&http.Client{Transport: transport}).Do(request)
		s.must(err)
		defer func() { _ = response.Body.Close() }()
		var told struct{ State string }
		s.must(json.NewDecoder(response.Body).Decode(&told))
		return response.StatusCode, told.State
	}
}

// opensSoon is a window that opens within a minute, so that the cluster is woken for it at once or soon.
func opensSoon() string {
	opens := time.Now().UTC().Add(time.Minute)
	return opens.Format("Mon 15:04-") + opens.Add(2*time.Hour).Format("15:04") + " UTC"
}

// wokenFor waits until the cluster is awake, and an Event has said why.
func (s *story) wokenFor(c *cnpgv1.Cluster, words string) {
	s.Helper()
	_, err := kube.AwaitEventSaying(s.ctx, c, "Woken", words, toHealthy) // the window may open in a minute
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
}
