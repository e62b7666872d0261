package tests

import (
	"cmp"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// afterACut has how many errors an application gets when its pool's idle connections have been cut, with the defaults of the pool, or
// as the name says. docs/guides/clients.md has the same.
var afterACut = map[string]string{
	"pgxpool": "0", "database/sql": "0",
	"psycopg_pool": "4", "psycopg_pool with check": "0",
	"SQLAlchemy": "1", "SQLAlchemy with pool_pre_ping": "0",
	"Django with CONN_MAX_AGE": "1", "Django with CONN_HEALTH_CHECKS": "0",
	"asyncpg": "0", "Active Record": "0", "HikariCP": "0",
	"node-postgres": "0", "node-postgres that keeps connections": "0",
	"Postgres.js": "0", "Prisma": "0", "Prisma that keeps connections": "0", "Prisma with maxWait": "0",
}

// refusalText is a part of the gateway's text for a cluster under maintenance. Most drivers show it, because by default they use no TLS, or
// connect again without it. withoutText has what the others show, by the mode of TLS. docs/reference/client-errors.md has the same.
const refusalText = "end the maintenance, or set reusePVC to true"

var withoutText = map[string]map[string]string{
	"psycopg_pool":            {"prefer": "couldn't get a connection", "disable": "couldn't get a connection"},
	"psycopg_pool with check": {"prefer": "couldn't get a connection", "disable": "couldn't get a connection"},
	"asyncpg":                 {"prefer": ""},
	"HikariCP":                {"prefer": "SSL error: Remote host terminated the handshake"},
}

// Pools and frameworks in five languages connect to a sleeping cluster, each with its defaults but for its timeouts, and are answered
// without an error. With activity=queries their idle connections are terminated for the next sleep, and what follows costs as many errors
// as the page says. What a refusal shows is on another page.
func TestStacks(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "DRIVERS_IMAGE")
	s := begin(t)
	c := kube.NewCluster(s.namespace, "stacks", 1, never)
	c.Annotations[scenario.DozeMinutes], c.Annotations[scenario.Activity] = dozeMinutes, "queries"
	s.running(c)
	s.startDrivers(c, image)
	step := 0
	for _, depth := range []struct {
		name   string
		asleep func()
	}{{"doze", func() { s.dozes(c) }}, {"hibernation", func() {
		s.must(kube.Annotate(s.ctx, c, scenario.DozeMinutes, nil)) // it may not be longer than the threshold
		s.sleeps(c)
	}}} {
		depth.asleep()
		stacks := s.startStacks(c, "prefer", 2*time.Minute, 10)
		for _, expected := range []func(name string) string{
			func(string) string { return "0" },
			func(name string) string { return afterACut[name] },
		} {
			step++
			seen := stacks.use(s, step)
			for name := range afterACut {
				if errors, first, _ := strings.Cut(seen[name], "\t"); errors != expected(name) {
					t.Errorf("%s, step %d, %s: answered after %q errors, want %s: %s", depth.name, step, name, errors, expected(name), first)
				}
			}
			if step%2 == 1 {
				depth.asleep()
			}
		}
		stacks.stop(s)
	}
	s.sleeps(c)
	s.maintain(c, true)
	_, err := kube.AwaitEvent(s.ctx, c, "WakeRefused", toSettle)
	s.must(err)
	for _, sslmode := range []string{"prefer", "disable"} {
		step++
		stacks := s.startStacks(c, sslmode, 10*time.Second, 1)
		for name, seen := range stacks.use(s, step) {
			_, shown, _ := strings.Cut(seen, "\t")
			want, without := withoutText[name][sslmode]
			if without != !strings.Contains(shown, refusalText) || !strings.Contains(shown, want) {
				t.Errorf("refused with sslmode=%s, %s shows %q, want %q", sslmode, name, shown, cmp.Or(want, refusalText))
			}
		}
		stacks.stop(s)
	}
}

// programs are those of testdata/stacks, each with how it is run.
var programs = map[string]string{
	"stacks.py": "exec python3 /tmp/stacks.py", "stacks.rb": "exec ruby /tmp/stacks.rb",
	"stacks.js": "NODE_PATH=/usr/share/nodejs:/opt/node/node_modules exec node /tmp/stacks.js", "Stacks.java": "exec java -cp " + hikari + " /tmp/Stacks.java",
}

// stacks are pools of this process, and the programs of testdata/stacks, which run in the drivers' pod.
type stacks struct {
	pool     *pgxpool.Pool
	database *sql.DB
	tries    int // for each answer
}

// startStacks starts them. They connect when they are first used, for at most so long at each try.
func (s *story) startStacks(c *cnpgv1.Cluster, sslmode string, timeout time.Duration, tries int) stacks {
	s.Helper()
	settings := fmt.Sprintf("host=%s user=app password=%s dbname=app sslmode=%s", s.address(c, "rw"), s.password(c), sslmode)
	environment := fmt.Sprintf("PGPASSWORD=%s SSLMODE=%s TIMEOUT=%.0f TRIES=%d", s.password(c), sslmode, timeout.Seconds(), tries)
	if sslmode != "prefer" { // with which node-postgres would verify the certificate
		environment += " PGSSLMODE=" + sslmode
	}
	pool, err := pgxpool.New(s.ctx, settings)
	s.must(err)
	s.Cleanup(pool.Close)
	database, err := sql.Open("pgx", settings)
	s.must(err)
	s.Cleanup(func() { _ = database.Close() })
	for file, command := range programs {
		s.must(kube.Put(s.ctx, s.namespace, "drivers", "drivers", "testdata/stacks/"+file, "/tmp/"+file))
		script := fmt.Sprintf("cd /tmp; : >%[1]s.in; export %[2]s; "+
			"(tail -f %[1]s.in | (echo $BASHPID >%[1]s.pid; %[3]s %[4]s) >%[1]s.out 2>%[1]s.err) >/dev/null 2>&1 </dev/null &",
			file, environment, command, c.Name+"-rw")
		_, err := kube.Exec(s.ctx, s.namespace, "drivers", "drivers", "bash", "-c", script)
		s.must(err)
	}
	return stacks{pool, database, tries}
}

// use has every stack execute a statement at the same time, and returns for each the number of errors before its answer and the first.
func (k stacks) use(s *story, step int) map[string]string {
	s.Helper()
	seen := map[string]string{}
	var group sync.WaitGroup
	var mutex sync.Mutex
	for name, ask := range map[string]func() error{
		"pgxpool":      func() error { _, err := k.pool.Exec(s.ctx, "select 1"); return err },
		"database/sql": func() error { _, err := k.database.ExecContext(s.ctx, "select 1"); return err },
	} {
		group.Go(func() {
			first, errors := "", 0
			for err := ask(); err != nil; err = ask() {
				if errors++; errors == 1 {
					first = strings.Join(strings.Fields(err.Error()), " ")
				}
				if errors == k.tries {
					break
				}
			}
			mutex.Lock()
			defer mutex.Unlock()
			seen[name] = fmt.Sprintf("%d\t%s", errors, first)
		})
	}
	in := func(script string) string {
		out, err := kube.Exec(s.ctx, s.namespace, "drivers", "drivers", "bash", "-c", "cd /tmp; "+script)
		s.must(err)
		return out
	}
	in(fmt.Sprintf("for f in *.in; do echo %d >>$f; done", step))
	var said string
	for deadline := time.Now().Add(toHealthy); strings.Count(said, fmt.Sprintf("%d\tend\n", step)) < len(programs); pause(s, pollEvery) {
		if said = in("cat *.out"); time.Now().After(deadline) {
			s.Fatalf("not every program has answered:\n%s\n%s", said, in("tail -n 5 *.err"))
		}
	}
	group.Wait()
	s.Logf("pgxpool %q, database/sql %q\n%s", seen["pgxpool"], seen["database/sql"], said)
	for line := range strings.Lines(said) {
		if fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3); len(fields) == 3 && fields[0] == strconv.Itoa(step) {
			seen[fields[1]] = fields[2]
		}
	}
	return seen
}

// stop ends them, and with them their connections.
func (k stacks) stop(s *story) {
	s.Helper()
	k.pool.Close()
	_ = k.database.Close()
	_, err := kube.Exec(s.ctx, s.namespace, "drivers", "drivers", "bash", "-c", "cd /tmp; kill $(cat *.pid); rm -f *.in *.out *.err *.pid")
	s.must(err)
}
