package tests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// javaClient connects, queries and prints, with the driver's defaults.
const javaClient = `import java.sql.*;
public class Client {
	public static void main(String[] arguments) throws Exception {
		try (Connection c = DriverManager.getConnection(arguments[0], "app", System.getenv("PGPASSWORD"));
				ResultSet r = c.createStatement().executeQuery("select 'answered'")) {
			r.next();
			System.out.println(r.getString(1));
		}
	}
}`

// Clients in other languages connect to a sleeping cluster with their default settings and get an answer. TestOneRuleForBothEnds has
// every connection mode of the newest ones.
func TestDrivers(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "DRIVERS_IMAGE")
	const java = "cat >/tmp/Client.java <<'END'\n" + javaClient + "\nEND\n" + `exec java -cp "%s/usr/share/java/*" /tmp/Client.java "jdbc:postgresql://%s-rw/app"`
	for name, rows := range map[string][]struct{ rule, script string }{
		"python-node": {
			{"psycopg 3", `exec python3 -c 'import os, psycopg; print(psycopg.connect("host=CLUSTER-rw user=app dbname=app").execute("select %s", ["answered"]).fetchone()[0])'`},
			{"node-postgres", `NODE_PATH=/usr/share/nodejs exec node -e 'const {Client} = require("pg"); (async () => { const c = new Client({host: "CLUSTER-rw", user: "app", database: "app", password: process.env.PGPASSWORD}); await c.connect(); console.log((await c.query("select $1 as a", ["answered"])).rows[0].a); await c.end() })().catch(e => { console.error(e); process.exit(1) })'`},
			{"node-postgres with TLS", `NODE_PATH=/usr/share/nodejs exec node -e 'const {Client} = require("pg"); (async () => { const c = new Client({host: "CLUSTER-rw", user: "app", database: "app", password: process.env.PGPASSWORD, ssl: {ca: require("fs").readFileSync("/tmp/ca.crt"), servername: "CLUSTER-rw"}}); await c.connect(); console.log((await c.query("select $1 as a", ["answered"])).rows[0].a); await c.end() })().catch(e => { console.error(e); process.exit(1) })'`},
		},
		"java": {
			{"pgjdbc 42.7.7", fmt.Sprintf(java, "", "CLUSTER")},
			{"pgjdbc 42.5.5", fmt.Sprintf(java, "/opt/bookworm", "CLUSTER")},
			{"pgjdbc 42.7.14", fmt.Sprintf(java, "/opt/forky", "CLUSTER")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			c := s.running(kube.NewCluster(s.namespace, name, 1, never))
			s.startDrivers(c, image)
			for _, row := range rows {
				s.sleeps(c)
				start := time.Now()
				script := "export PGPASSWORD=" + s.password(c) + "; " + strings.ReplaceAll(row.script, "CLUSTER", c.Name)
				out, err := kube.Exec(s.ctx, s.namespace, "drivers", "drivers", "bash", "-c", script)
				t.Logf("%s: answered after %.2fs", row.rule, time.Since(start).Seconds())
				if err != nil || out != "answered\n" {
					t.Errorf("%s: %q (%v)", row.rule, out, err)
				}
				s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
			}
		})
	}
}

// startDrivers starts a pod with the drivers and the cluster's CA.
func (s *story) startDrivers(c *cnpgv1.Cluster, image string) {
	s.Helper()
	zero := int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "drivers"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &zero,
			Containers: []corev1.Container{{
				Name: "drivers", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "infinity"},
			}},
		},
	}
	s.must(kube.Create(s.ctx, pod))
	_, err := scenario.Await(s.ctx, kube, pod, "running", toHealthy, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	s.must(err)
	_, err = kube.Exec(s.ctx, s.namespace, "drivers", "drivers", "bash", "-c", fmt.Sprintf("cat >/tmp/ca.crt <<'END'\n%s\nEND", s.authority(c)))
	s.must(err)
}
