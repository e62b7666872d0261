package tests

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/certs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// asPeopleHaveIt is a specification with settings that users' clusters have and those of the other tests lack. User 998 in group 996,
// PgBouncer's in the image's passwd, stands for any user other than CloudNativePG's.
const asPeopleHaveIt = `
imageName: ""
imageCatalogRef: {apiGroup: postgresql.cnpg.io, kind: ImageCatalog, name: images, major: %d}
postgresUID: 998
postgresGID: 996
enableSuperuserAccess: true
superuserSecret: {name: postgres}
certificates: {serverCASecret: authority, clientCASecret: authority, serverTLSSecret: server, replicationTLSSecret: replication}
enablePDB: false
primaryUpdateMethod: switchover
smartShutdownTimeout: 15
stopDelay: 30
switchoverDelay: 30
startDelay: 120
walStorage: {size: 1Gi}
tablespaces: [{name: fast, owner: {name: app}, storage: {size: 1Gi}}]
inheritedMetadata: {labels: {team: shop}, annotations: {example.org/note: shop}}
managed:
  roles: [{name: api, login: true, passwordSecret: {name: api}}]
  services:
    disabledDefaultServices: [ro, r]
    additional:
    - {selectorType: rw, serviceTemplate: {metadata: {name: shop-ext}, spec: {type: LoadBalancer}}}
    - {selectorType: ro, serviceTemplate: {metadata: {name: shop-read}}}
postgresql:
  synchronous: {method: any, number: 1, dataDurability: required}
  parameters: {max_connections: "300", shared_buffers: 128MB}
  pg_hba: [hostnossl all all all reject]
resources: {requests: {cpu: 50m, memory: 256Mi}, limits: {memory: 512Mi}}
affinity: {podAntiAffinityType: preferred, topologyKey: kubernetes.io/hostname}
topologySpreadConstraints:
- {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {cnpg.io/cluster: shop}}}
`

// A cluster with features that users of CloudNativePG combine falls asleep, and clients wake it through each of its Services: its
// tablespace and roles are there, it presents its own certificates, and its standby is synchronous again.
func TestAClusterAsPeopleHaveIt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	logins := map[string]string{"postgres": "of the superuser", "api": "of a managed role"}
	for user, password := range logins {
		s.must(kube.Create(s.ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: user}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{"username": user, "password": password},
		}))
	}
	services := []string{"rw", "ext", "read"}
	s.certifies("shop-rw", "shop-ext", "shop-read")
	c := kube.NewCluster(s.namespace, "shop", 2, never)
	s.must(yaml.UnmarshalStrict(fmt.Appendf(nil, asPeopleHaveIt, s.catalogues("images")), &c.Spec))
	s.running(c)
	_, err := kube.AwaitCluster(s.ctx, c, "with its tablespace and its role", toHealthy, func(c *cnpgv1.Cluster) bool {
		return slices.ContainsFunc(c.Status.TablespacesStatus, func(t cnpgv1.TablespaceState) bool { return t.State == cnpgv1.TablespaceStatusReconciled }) &&
			slices.Contains(c.Status.ManagedRolesStatus.ByStatus[cnpgv1.RoleStatusReconciled], "api")
	})
	s.must(err)
	verify := s.trust(c)
	_, err = kube.QueryAs(s.ctx, c, "rw", verify, "create table kept tablespace fast as select 42 as answer; grant select on kept to api")
	s.must(err)
	s.synchronous(c)

	s.sleeps(c)
	s.awaitSlices(c, toSettle, services...)
	logins["app"] = s.password(c)
	answers := make(chan error, len(logins))
	for i, user := range []string{"app", "api", "postgres"} { // all are held at once, because a cluster that was woken stays awake
		go func() {
			settings := fmt.Sprintf("%s %s user=%s password='%s'", fromAfar, verify, user, logins[user])
			answer, err := kube.QueryAs(s.ctx, c, services[i], settings, "select answer from kept")
			if err == nil && answer != "42" {
				err = fmt.Errorf("the answer is %q", answer)
			}
			if err != nil {
				err = fmt.Errorf("%s through %s: %w", user, services[i], err)
			}
			answers <- err
		}()
	}
	for range logins {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, between+toSettle)
	s.synchronous(c)
	if _, err := kube.QueryAs(s.ctx, c, "rw", verify, "insert into kept values (43)"); err != nil {
		t.Error(err)
	}
}

// major returns the major version of the image that the tests use.
func major() string {
	_, tag, _ := strings.Cut(kube.PostgresImage, ":")
	number, _, _ := strings.Cut(tag, ".")
	return number
}

// catalogues makes an ImageCatalog of the image that the tests use, and returns its major version.
func (s *story) catalogues(name string) int {
	s.Helper()
	number, err := strconv.Atoi(major())
	if err != nil {
		s.Skipf("POSTGRES_IMAGE is %q, and does not say its version", kube.PostgresImage)
	}
	s.must(kube.Create(s.ctx, &cnpgv1.ImageCatalog{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name},
		Spec:       cnpgv1.ImageCatalogSpec{Images: []cnpgv1.CatalogImage{{Image: kube.PostgresImage, Major: number}}},
	}))
	return number
}

// certifies makes the Secrets of a cluster with certificates of its own: an authority without its key, a server of these names, and the
// standbys' client.
func (s *story) certifies(names ...string) {
	s.Helper()
	ca, err := certs.CreateRootCA("shop", s.namespace)
	s.must(err)
	server, err := ca.CreateAndSignPair(names[0], certs.CertTypeServer, names)
	s.must(err)
	replication, err := ca.CreateAndSignPair("streaming_replica", certs.CertTypeClient, nil)
	s.must(err)
	authority := ca.GenerateCASecret(s.namespace, "authority")
	delete(authority.Data, certs.CAPrivateKeyKey)
	for _, secret := range []client.Object{
		authority, server.GenerateCertificateSecret(s.namespace, "server"), replication.GenerateCertificateSecret(s.namespace, "replication"),
	} {
		s.must(kube.Create(s.ctx, secret))
	}
}

// synchronous waits until the primary counts a standby of the cluster as synchronous.
func (s *story) synchronous(c *cnpgv1.Cluster) {
	s.Helper()
	const states = "select string_agg(sync_state, ' ') from pg_stat_replication"
	_, err := kube.Exec(s.ctx, s.namespace, c.Status.CurrentPrimary, "postgres", "timeout", fmt.Sprint(toSettle.Seconds()),
		"bash", "-c", `until [ "$(psql -XAtU postgres -c "`+states+`")" = quorum ]; do sleep 0.2; done`)
	if err != nil {
		s.Errorf("the standby is not synchronous: %v", err)
	}
}
