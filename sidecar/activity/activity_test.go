package activity

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	cluster := Cluster{Instances: []string{"c-1", "c-2"}}
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
		{"the instance manager's name over the network counts", Session{BackendType: "client backend", User: "postgres", Application: "cnpg-instance-manager"}, ClassClient},
		{"the exporter's user under another name counts", Session{BackendType: "client backend", User: "cnpg_metrics_exporter", Application: "psql", Local: true}, ClassClient},
		{"our own sessions do not, under either role", Session{BackendType: "client backend", User: "cnpg_metrics_exporter", Application: ApplicationName, Local: true}, ClassInfrastructure},
		{"our name from an ordinary user counts", Session{BackendType: "client backend", User: "app", Application: ApplicationName, Local: true}, ClassClient},
		{"a standby does not", Session{BackendType: "walsender", User: "streaming_replica", Application: "c-2"}, ClassInfrastructure},
		{"a standby that joins does not", Session{BackendType: "walsender", User: "streaming_replica", Application: "c-2-join"}, ClassInfrastructure},
		{"a walsender of another cluster counts", Session{BackendType: "walsender", User: "streaming_replica", Application: "d-1"}, ClassClient},
		{"the pooler in another database counts", Session{BackendType: "client backend", User: "cnpg_pooler_pgbouncer", Database: "app"}, ClassClient},
		{"the checkpointer does not", Session{BackendType: "checkpointer"}, ClassInternal},
		{"an autovacuum worker does not", Session{BackendType: "autovacuum worker", User: "postgres", State: "active"}, ClassInternal},
		{"the idle launcher of an extension does not", Session{BackendType: "pg_cron launcher", User: "postgres"}, ClassInternal},
		{"a worker of an extension that works does", Session{BackendType: "pg_cron", User: "postgres", State: "active"}, ClassClient},
		{"a running logical subscription does", Session{BackendType: "logical replication apply worker", User: "app", State: "idle"}, ClassClient},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := Classify(row.session, cluster); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestTallyCountsEveryState(t *testing.T) {
	t.Parallel()
	var tally Tally
	if tally.Active() {
		t.Error("nothing counts")
	}
	for _, state := range []string{"active", "idle", "idle in transaction", "idle in transaction (aborted)", "fastpath function call", "disabled", "", "starting"} {
		tally.Add(Session{BackendType: "client backend", User: "app", State: state}, Cluster{})
	}
	want := map[string]int{"active": 1, "idle": 1, "idle_in_transaction": 1, "idle_in_transaction_aborted": 1, "fastpath_function_call": 1, "disabled": 1, "unknown": 2}
	if diff := cmp.Diff(want, tally.ByState()); diff != "" || !tally.Active() {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func FuzzDecodeReport(f *testing.F) {
	body, err := EncodeReport(Report{Cluster: "c", Pod: "c-1", Known: true, Reason: "idle"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		report, err := DecodeReport(body)
		if err != nil && !errors.Is(err, ErrReport) {
			t.Errorf("the error is not classified: %v", err)
		}
		if err == nil && report.Version != ReportVersion {
			t.Errorf("version %d was taken", report.Version)
		}
	})
}
