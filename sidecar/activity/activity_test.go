package activity

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestClassify_infrastructureIsByUserAndApplication(t *testing.T) {
	t.Parallel()
	standby, elsewhere := netip.MustParseAddrPort("192.0.2.2:5000"), netip.MustParseAddrPort("203.0.113.7:5000")
	gateway := netip.MustParseAddrPort("192.0.2.66:5000")
	rules := Rules{
		Instances: []string{"c-1", "c-2"}, Addresses: []netip.Addr{standby.Addr()}, Ignore: []idle.Pattern{{User: "monitoring"}},
		ClientAddr: func(peer netip.AddrPort) netip.AddrPort {
			if peer == gateway {
				return standby
			}
			return peer
		},
	}
	for _, row := range []struct {
		rule    string
		session Session
		want    Class
	}{
		{"a client counts", Session{BackendType: "client backend", User: "app", State: "idle"}, ClassClient},
		{"a process without user and state is PostgreSQL's own", Session{BackendType: "something new"}, ClassInternal},
		{"a client of whom nothing is known counts", Session{BackendType: "client backend"}, ClassClient},
		{"a client who has not logged in yet does not", Session{BackendType: "client backend", State: "starting"}, ClassInternal},
		{"a client who has logged in counts in any state", Session{BackendType: "client backend", User: "app", State: "starting"}, ClassClient},
		{"the instance manager over the socket does not", Session{BackendType: "client backend", User: "postgres", Application: "cnpg-instance-manager", Local: true}, ClassInfrastructure},
		{"the probes' pg_isready over the socket does not", Session{BackendType: "client backend", User: "postgres", Application: "pg_isready", Local: true}, ClassInfrastructure},
		{"nor does it while it scrapes, in operators that have no role for that", Session{BackendType: "client backend", User: "postgres", Application: "cnpg_metrics_exporter", Local: true}, ClassInfrastructure},
		{"the exporter's name over the network counts", Session{BackendType: "client backend", User: "postgres", Application: "cnpg_metrics_exporter"}, ClassClient},
		{"another user's pg_isready counts", Session{BackendType: "client backend", User: "app", Application: "pg_isready", Local: true}, ClassClient},
		{"the instance manager's name over the network counts", Session{BackendType: "client backend", User: "postgres", Application: "cnpg-instance-manager"}, ClassClient},
		{"the exporter's user under another name counts", Session{BackendType: "client backend", User: "cnpg_metrics_exporter", Application: "psql", Local: true}, ClassClient},
		{"our own sessions do not, under either role", Session{BackendType: "client backend", User: "cnpg_metrics_exporter", Application: contract.ApplicationName, Local: true}, ClassInfrastructure},
		{"nor does the one that listens", Session{BackendType: "client backend", User: "postgres", Application: contract.ListeningApplicationName, Local: true}, ClassInfrastructure},
		{"our name from an ordinary user counts", Session{BackendType: "client backend", User: "app", Application: contract.ApplicationName, Local: true}, ClassClient},
		{"a standby does not", Session{BackendType: "walsender", User: "streaming_replica", Application: "c-2", Peer: standby}, ClassInfrastructure},
		{"nor does one that the gateway passes on", Session{BackendType: "walsender", User: "streaming_replica", Application: "c-2", Peer: gateway}, ClassInfrastructure},
		{"nor does its slot replicator", Session{BackendType: "client backend", User: "streaming_replica", Application: "c-2", Peer: standby}, ClassInfrastructure},
		{"a standby that joins does not, from a pod that is no instance yet", Session{BackendType: "walsender", User: "streaming_replica", Application: "c-2-join", Peer: elsewhere}, ClassInfrastructure},
		{"a replica cluster with the name of an instance counts", Session{BackendType: "walsender", User: "streaming_replica", Application: "c-2", Peer: elsewhere}, ClassReplication},
		{"so does another client of it", Session{BackendType: "client backend", User: "streaming_replica", Application: "c-2", Peer: elsewhere}, ClassClient},
		{"a standby whose address is not visible counts", Session{BackendType: "walsender", User: "streaming_replica", Application: "c-2"}, ClassReplication},
		{"a worker of pg_prewarm that fills the cache does not", Session{BackendType: "autoprewarm worker", User: "postgres", State: "active", InTransaction: true}, ClassInternal},
		{"nor does its leader", Session{BackendType: "autoprewarm leader", State: "active"}, ClassInternal},
		{"a walsender of another cluster counts", Session{BackendType: "walsender", User: "streaming_replica", Application: "d-1"}, ClassReplication},
		{"the pooler in another database counts", Session{BackendType: "client backend", User: "cnpg_pooler_pgbouncer", Database: "app"}, ClassClient},
		{"the checkpointer does not", Session{BackendType: "checkpointer"}, ClassInternal},
		{"an autovacuum worker does not", Session{BackendType: "autovacuum worker", User: "postgres", State: "active"}, ClassInternal},
		{"the idle launcher of an extension does not", Session{BackendType: "pg_cron launcher", User: "postgres"}, ClassInternal},
		{"a worker of an extension that works does", Session{BackendType: "pg_cron", User: "postgres", State: "active"}, ClassWorker},
		{"an idle worker of an extension does not", Session{BackendType: "TimescaleDB Background Worker Scheduler", User: "postgres", State: "idle"}, ClassInternal},
		{"one in a transaction does", Session{BackendType: "x", User: "postgres", State: "idle", InTransaction: true}, ClassWorker},
		{"a worker of a subscription has a reason of its own", Session{BackendType: "logical replication apply worker", User: "app", State: "idle"}, ClassInternal},
		{"an autovacuum against wraparound counts", Session{BackendType: "autovacuum worker", State: "active", Wraparound: true}, ClassWraparound},
		{"who is ignored does not count", Session{BackendType: "client backend", User: "monitoring", State: "active"}, ClassIgnored},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := Classify(row.session, rules); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// The login trigger must not notify of sessions that do not count, and the other way round.
func TestLoginTrigger_hasTheSameInfrastructure(t *testing.T) {
	t.Parallel()
	trigger, err := os.ReadFile("../../sql/login-trigger.sql")
	if err != nil {
		t.Fatal(err)
	}
	for user, applications := range LocalInfrastructure {
		condition := fmt.Sprintf("session_user = '%s' AND socket AND application IN ('%s')", user, strings.Join(applications, "', '"))
		if !strings.Contains(string(trigger), condition) {
			t.Errorf("login-trigger.sql lacks %s", condition)
		}
	}
	if got := strings.Count(string(trigger), "AND socket AND"); got != len(LocalInfrastructure) {
		t.Errorf("login-trigger.sql has %d users of the socket, want %d", got, len(LocalInfrastructure))
	}
}

func TestTally_countsEveryState(t *testing.T) {
	t.Parallel()
	var tally Tally
	if len(tally.InUse()) != 0 {
		t.Error("nothing counts")
	}
	for _, state := range []string{"active", "idle", "idle in transaction", "idle in transaction (aborted)", "fastpath function call", "disabled", "", "starting"} {
		tally.Add(Session{BackendType: "client backend", User: "app", State: state}, Rules{})
	}
	want := map[string]int{"active": 1, "idle": 1, "idle_in_transaction": 1, "idle_in_transaction_aborted": 1, "fastpath_function_call": 1, "disabled": 1, "unknown": 2}
	if diff := cmp.Diff(want, tally.ByState()); diff != "" || len(tally.InUse()) != 1 {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func TestTally_hasTheSessionsOfPoolersAndSlotsyncWorkersEnded(t *testing.T) {
	t.Parallel()
	standby := netip.MustParseAddrPort("10.0.0.2:5000")
	rules := Rules{Instances: []string{"c-2"}, Addresses: []netip.Addr{standby.Addr()}}
	worker := Terminable{PID: 3, Started: 10, Infrastructure: true}
	for state, want := range map[string][]Terminable{
		"idle":   {{PID: 1, Started: 10, Idle: true, Changed: 5, Infrastructure: true}, worker},
		"active": {worker},
	} {
		var tally Tally
		tally.Add(Session{BackendType: "client backend", User: PoolerUser, Database: "postgres", State: state, PID: 1, Started: 10, Changed: 5}, Rules{})
		follower := Session{BackendType: "client backend", User: StandbyUser, Application: "c-2", Peer: standby, State: state, PID: 3, Started: 10, Changed: 5}
		tally.Add(follower, rules)
		follower.BackendType, follower.PID = "walsender", 4 // a shutdown sends it the last of the WAL
		tally.Add(follower, rules)
		tally.Add(Session{BackendType: "client backend", User: "postgres", Application: "cnpg-instance-manager", Local: true, State: "idle", PID: 2}, Rules{})
		if diff := cmp.Diff(want, tally.Terminable(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || len(tally.InUse()) != 0 {
			t.Errorf("%s (-want +got):\n%s", state, diff)
		}
	}
}

func TestTally_countsARestingSessionUpToItsLastStatement(t *testing.T) {
	t.Parallel()
	var tally Tally
	rules := Rules{Queries: true}
	tally.Add(Session{BackendType: "client backend", State: "idle", PID: 1, Started: 10, IdleFor: time.Hour, Changed: 5}, rules)
	tally.Add(Session{BackendType: "client backend", State: "idle", PID: 2, Started: 20, IdleFor: time.Minute, Changed: 6}, rules)
	tally.Add(Session{BackendType: "client backend", State: "idle", PID: 3, Started: 30, IdleFor: -time.Minute, Changed: 7, User: "mon", Peer: netip.MustParseAddrPort("10.0.0.9:5000")}, Rules{Ignore: []idle.Pattern{{User: "*"}}})
	if ago, ok := tally.LastUse(); !ok || ago != time.Minute || len(tally.InUse()) != 0 {
		t.Errorf("last use %s ago (%t), in use %v", ago, ok, tally.InUse())
	}
	want := []Terminable{{PID: 1, Started: 10, Idle: true, Changed: 5}, {PID: 2, Started: 20, Idle: true, Changed: 6}, {PID: 3, Started: 30, User: "mon", Client: netip.MustParseAddr("10.0.0.9")}}
	if diff := cmp.Diff(want, tally.Terminable(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("terminable (-want +got):\n%s", diff)
	}
	for _, state := range []string{"active", "idle in transaction", "disabled", ""} {
		var busy Tally
		busy.Add(Session{BackendType: "client backend", State: state}, rules)
		if len(busy.InUse()) != 1 {
			t.Errorf("state %q does not count", state)
		}
	}
}

func TestJudge_followsTheOneRule(t *testing.T) {
	t.Parallel()
	const shortest = uint64(contract.MinStartupPacketBytes)
	other := netip.MustParseAddr("10.0.0.2")
	ignore := []idle.Pattern{{Client: netip.MustParsePrefix("10.9.0.0/16")}, {Client: netip.MustParsePrefix("10.8.0.0/16"), User: "x"}}
	for _, row := range []struct {
		rule     string
		peer     string
		received uint64
		around   Surroundings
		want     Verdict
	}{
		{"a session that a sample judged to be a client's is a client", "10.0.0.1:1", 1, Surroundings{Class: ClassClient, Probe: true}, VerdictClient},
		{"a replication client is a client", "10.0.0.1:1", 1, Surroundings{Class: ClassReplication}, VerdictClient},
		{"a session that a sample judged to be infrastructure is none", "10.0.0.1:2", 9999, Surroundings{Class: ClassInfrastructure}, VerdictInfrastructure},
		{"a session that a sample judged to be ignored is none", "10.0.0.1:3", 9999, Surroundings{Class: ClassIgnored}, VerdictInfrastructure},
		{"a probe is no client", "127.0.0.1:4", 9999, Surroundings{Probe: true}, VerdictProbe},
		{"a probe from an instance's address is a probe", "10.0.0.2:4", 9999, Surroundings{Probe: true}, VerdictProbe},
		{"a session from the loopback interface that is no probe is a client", "127.0.0.1:5", 9999, Surroundings{}, VerdictUnseen},
		{"the loopback address is nobody's instance", "127.0.0.1:5", 9999, Surroundings{Instances: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, VerdictUnseen},
		{"a session from another instance is infrastructure", "10.0.0.2:99", 3258, Surroundings{}, VerdictInstance},
		{"a session from another instance over a socket for both families is infrastructure", "[::ffff:10.0.0.2]:99", 3258, Surroundings{}, VerdictInstance},
		{"a session that the gateway passes on for another instance is infrastructure", "10.0.0.66:1", 3258, Surroundings{Client: other}, VerdictInstance},
		{"a client whose address is ignored is ignored", "10.9.1.1:1", 9999, Surroundings{}, VerdictIgnored},
		{"a client whose address is ignored for one user counts", "10.8.1.1:1", 9999, Surroundings{}, VerdictUnseen},
		{"a client behind the gateway is ignored by its own address", "10.0.0.66:1", 9999, Surroundings{Client: netip.MustParseAddr("10.9.0.1")}, VerdictIgnored},
		{"a client behind a gateway with an ignored address counts", "10.9.0.1:1", 9999, Surroundings{Client: netip.MustParseAddr("10.0.0.9")}, VerdictUnseen},
		{"a bare connect is no client", "10.0.0.9:1", 1, Surroundings{}, VerdictIncomplete},
		{"an SSLRequest alone is no client", "10.0.0.9:1", 8 + 1, Surroundings{}, VerdictIncomplete},
		{"one byte less than the shortest startup packet is no client", "10.0.0.9:1", shortest - 1, Surroundings{}, VerdictIncomplete},
		{"the shortest startup packet is a client", "10.0.0.9:1", shortest, Surroundings{}, VerdictUnseen},
		{"pg_isready is a client", "10.0.0.9:1", 62, Surroundings{}, VerdictUnseen},
		{"a wrong password is a client", "10.0.0.9:1", 218, Surroundings{}, VerdictUnseen},
		{"a client over a socket for both families counts", "[::ffff:10.0.0.9]:1", 218, Surroundings{}, VerdictUnseen},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			around := row.around
			around.Instances, around.Ignore = append(around.Instances, other), ignore
			if got := Judge(Ended{Peer: netip.MustParseAddrPort(row.peer), Received: row.received}, around); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestClassify_probesAreInfrastructure(t *testing.T) {
	t.Parallel()
	probe := netip.MustParseAddrPort("127.0.0.1:40000")
	rules := Rules{Probe: func(peer netip.AddrPort) bool { return peer == probe }}
	session := Session{BackendType: "client backend", User: "cnpg_metrics_exporter", State: "idle", Peer: probe}
	if got := Classify(session, rules); got != ClassInfrastructure {
		t.Errorf("a probe is %s", got)
	}
	session.Peer = netip.MustParseAddrPort("127.0.0.1:40001")
	if got := Classify(session, rules); got != ClassClient {
		t.Errorf("another session of that user is %s", got)
	}
}

func TestLedger_isTheSameWithoutSessionsAndResets(t *testing.T) {
	t.Parallel()
	before := Ledger{"postgres": {Sessions: 100}, "app": {Sessions: 10}, "other": {Sessions: 5, Reset: 1}}
	for _, row := range []struct {
		rule  string
		after Ledger
		same  bool
	}{
		{"nothing happened", before, true},
		{"probes log in to the maintenance database", Ledger{"postgres": {Sessions: 106}, "app": {Sessions: 10}, "other": {Sessions: 5, Reset: 1}}, true},
		{"the exporter logs in to every database", Ledger{"postgres": {Sessions: 116}, "app": {Sessions: 25}, "other": {Sessions: 20, Reset: 1}}, false},
		{"a client logs in to one of them", Ledger{"postgres": {Sessions: 100}, "app": {Sessions: 11}, "other": {Sessions: 5, Reset: 1}}, false},
		{"the statistics were reset", Ledger{"postgres": {Sessions: 106}, "app": {Sessions: 10}, "other": {Sessions: 5, Reset: 2}}, false},
		{"a crash set them back", Ledger{"postgres": {Sessions: 1}, "app": {Sessions: 0}, "other": {Sessions: 0, Reset: 1}}, false},
		{"a database was dropped", Ledger{"postgres": {Sessions: 106}, "app": {Sessions: 10}}, false},
		{"a database was made", Ledger{"postgres": {Sessions: 106}, "app": {Sessions: 10}, "other": {Sessions: 5, Reset: 1}, "new": {}}, false},
		{"a database took another's place", Ledger{"postgres": {Sessions: 106}, "app": {Sessions: 10}, "new": {Sessions: 5, Reset: 1}}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := before.Same(row.after); got != row.same {
				t.Errorf("same %t", got)
			}
		})
	}
	if (Ledger{}).Same(Ledger{}) {
		t.Error("nothing at all is a proof")
	}
}
