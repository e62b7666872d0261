package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jackc/pgx/v5/pgxpool"
)

// poolSize is how many connections each pool has; testdata/pools has it too.
const poolSize = 3

// pool is an application's pool in front of a Pooler.
type pool struct {
	name string
	// use executes a statement on every connection, and returns a line for each: the number that PgBouncer gave the connection when it
	// was opened, and after how many milliseconds the statement was answered.
	use func() (string, error)
	// opened are the numbers of its connections.
	opened []string
}

// While a cluster sleeps, pools keep their connections to its Pooler. They do not keep it awake, the next statement on one of them wakes
// it, and no pool sees an error or opens another connection. `make soak` has them wait for fifteen minutes.
func TestPools_stayConnectedAsleep(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "DRIVERS_IMAGE")
	sleeps, each := 2, time.Duration(0)
	if soaking {
		sleeps, each = 3, 5*time.Minute
	}
	s := begin(t)
	c := s.pooledCluster()
	s.startDrivers(c, image)
	pools := []*pool{
		s.pgxPool(fmt.Sprintf("host=%s user=web password=%s dbname=app", s.address(c, "pooler"), webPassword)),
		s.servesPool("node-postgres", "8081", "pool.js", "NODE_PATH=/usr/share/nodejs exec node /tmp/pool.js "+c.Name+"-pooler"),
		s.servesPool("HikariCP", "8082", "Pool.java", "exec java -cp "+hikari+" /tmp/Pool.java "+c.Name+"-pooler"),
	}
	s.uses(pools, "awake")
	for range sleeps {
		s.sleeps(c)
		pause(s, each)
		s.asleep(c, "pools that stay connected")
		start := time.Now()
		s.uses(pools, fmt.Sprintf("after a sleep of %s and more", each))
		s.wokenSince(c, start, "pools that stay connected")
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	}

	s.sleeps(c)
	start := time.Now()
	direct := s.connect(fmt.Sprintf("host=%s user=web password=%s dbname=app", s.address(c, "rw"), webPassword))
	_, err := direct.Exec(s.ctx, "select 1")
	s.must(err)
	t.Logf("pgx without a Pooler: answered after %.2fs", time.Since(start).Seconds())
	s.must(direct.Close(s.ctx))
	s.uses(pools, "after another client's wake")
}

const webPassword = "of-the-pools"

// hikari is where the image of drivers has HikariCP and what it needs.
const hikari = "/usr/share/java/HikariCP.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-simple.jar:/usr/share/java/postgresql.jar"

// pooledCluster starts a cluster with a Pooler and a role as docs/guides/pools.md has them, except that PgBouncer's idle connections are closed
// after a second instead of a minute.
func (s *story) pooledCluster() *cnpgv1.Cluster {
	s.Helper()
	s.must(kube.Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{"username": "web", "password": webPassword},
	}))
	c := kube.NewCluster(s.namespace, "pooled", 1, never)
	c.Spec.Managed = &cnpgv1.ManagedConfiguration{Roles: []cnpgv1.RoleConfiguration{{
		Name: "web", Login: true, InRoles: []string{"app"}, PasswordSecret: &cnpgv1.LocalObjectReference{Name: "web"},
	}}}
	s.running(c)
	_, err := kube.AwaitCluster(s.ctx, c, "with its role", toHealthy, func(c *cnpgv1.Cluster) bool {
		return slices.Contains(c.Status.ManagedRolesStatus.ByStatus[cnpgv1.RoleStatusReconciled], "web")
	})
	s.must(err)
	pooler := kube.NewPooler(c, c.Name+"-pooler")
	pooler.Spec.PgBouncer.PoolMode = cnpgv1.PgBouncerPoolModeTransaction
	pooler.Spec.PgBouncer.Parameters = map[string]string{
		"server_idle_timeout": "1", "min_pool_size": "0", "server_login_retry": "1", "server_connect_timeout": "120",
	}
	s.must(kube.Create(s.ctx, pooler))
	s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))
	return c
}

// uses has the pools use all their connections at the same time, and checks that they are those that each had opened first.
func (s *story) uses(pools []*pool, when string) {
	s.Helper()
	var group sync.WaitGroup
	for _, p := range pools {
		group.Go(func() {
			answer, err := p.use()
			var numbers []string
			var first, took int
			for line := range strings.Lines(answer) {
				var number string
				if _, unread := fmt.Sscanf(line, "%s %d", &number, &took); unread != nil && err == nil {
					err = unread
				}
				if len(numbers) == 0 {
					first = took
				}
				numbers = append(numbers, number)
			}
			slices.Sort(numbers)
			if p.opened == nil {
				p.opened = numbers
			}
			s.Logf("%s, %s: the first answer after %d ms, the last after %d ms", p.name, when, first, took)
			if err != nil || len(numbers) != poolSize || !slices.Equal(numbers, p.opened) {
				s.Errorf("%s, %s: %q (%v), and it had opened %v", p.name, when, answer, err, p.opened)
			}
		})
	}
	group.Wait()
}

// pgxPool is a pool of this process.
func (s *story) pgxPool(settings string) *pool {
	s.Helper()
	opened, err := pgxpool.New(s.ctx, fmt.Sprintf("%s pool_max_conns=%d pool_max_conn_idle_time=8760h pool_max_conn_lifetime=8760h", settings, poolSize))
	s.must(err)
	s.Cleanup(opened.Close)
	return &pool{name: "pgxpool", use: func() (string, error) {
		began := time.Now()
		var lines strings.Builder
		for range poolSize {
			connection, err := opened.Acquire(s.ctx)
			if err != nil {
				return lines.String(), err
			}
			defer connection.Release() // not before each has been used
			if _, err := connection.Exec(s.ctx, "select $1::int", 1); err != nil {
				return lines.String(), err
			}
			fmt.Fprintln(&lines, connection.Conn().PgConn().PID(), time.Since(began).Milliseconds())
		}
		return lines.String(), nil
	}}
}

// servesPool is a pool of a program of testdata/pools, which runs in the drivers' pod and serves it there.
func (s *story) servesPool(name, port, program, command string) *pool {
	s.Helper()
	s.must(kube.Put(s.ctx, s.namespace, "drivers", "drivers", "testdata/pools/"+program, "/tmp/"+program))
	script := fmt.Sprintf("export PGPASSWORD=%s; (%s) >/tmp/%s.log 2>&1 </dev/null &", webPassword, command, port)
	_, err := kube.Exec(s.ctx, s.namespace, "drivers", "drivers", "bash", "-c", script)
	s.must(err)
	s.Cleanup(func() {
		if s.Failed() {
			said, err := kube.Exec(cleanup(s.T), s.namespace, "drivers", "drivers", "cat", "/tmp/"+port+".log")
			s.Logf("%s says: %s (%v)", name, said, err)
		}
	})
	use := func() (string, error) { return kube.Page(s.ctx, s.namespace, "drivers", port, "use") }
	for deadline := time.Now().Add(toHealthy); ; pause(s, pollEvery) {
		_, err := use()
		if err == nil {
			return &pool{name: name, use: use}
		}
		if !apierrors.IsServiceUnavailable(err) || time.Now().After(deadline) {
			s.Fatalf("%s serves nothing: %v", name, err)
		}
	}
}
