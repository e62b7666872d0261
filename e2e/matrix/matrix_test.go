package matrix

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, list string
		want       []cluster.Versions
		bad        string
	}{
		{"one", "1.29.1/1.34.4/17", []cluster.Versions{{Kubernetes: "1.34.4", Operator: "1.29.1", Postgres: "17"}}, ""},
		{"several", "1.28.2/1.34.4/15  1.30.0/1.36.3/18", []cluster.Versions{
			{Kubernetes: "1.34.4", Operator: "1.28.2", Postgres: "15"}, {Kubernetes: "1.36.3", Operator: "1.30.0", Postgres: "18"},
		}, ""},
		{"none", "", nil, ""},
		{"a part is missing", "1.29.1/17", nil, `"1.29.1/17"`},
		{"a version that there is not", "1.27.0/1.34.4/17", nil, `CloudNativePG "1.27.0"`},
	} {
		got, err := Parse(row.list)
		if (err != nil) != (row.bad != "") || err != nil && !strings.Contains(err.Error(), row.bad) {
			t.Errorf("%s: %v", row.rule, err)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.rule, diff)
		}
	}
}

func TestTheDefaultCombinationsExist(t *testing.T) {
	t.Parallel()
	for _, versions := range Default {
		if err := versions.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	const output = `using the cluster
{"Action":"start","Package":"tests"}
{"Action":"run","Package":"tests","Test":"TestOne"}
{"Action":"output","Package":"tests","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"pass","Package":"tests","Test":"TestOne/a part"}
{"Action":"pass","Package":"tests","Test":"TestOne"}
{"Action":"fail","Package":"tests","Test":"TestTwo"}
{"Action":"skip","Package":"tests","Test":"TestThree"}
{"Action":"fail","Package":"tests"}
`
	result := Result{Versions: Default[0], Took: 6 * time.Minute, Err: errors.New("exit status 1")}
	var log strings.Builder
	if err := result.Read(strings.NewReader(output), &log); err != nil {
		t.Fatal(err)
	}
	if want := "using the cluster\n=== RUN   TestOne\n"; log.String() != want {
		t.Errorf("the log is %q, want %q", log.String(), want)
	}
	broken := Result{Versions: Default[1], Err: errors.New("the cluster did not come up")}
	want := `| CloudNativePG | Kubernetes | PostgreSQL | passed | failed | left out | minutes |
|---|---|---|---|---|---|---|
| 1.30.0 | 1.34.4 | 17 | 1 | 1: TestTwo | 1: TestThree | 6 |
| 1.30.0 | 1.36.3 | 18 | 0 | not run to the end | 0 | 0 |
`
	if diff := cmp.Diff(want, Table([]Result{result, broken})); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
