package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSettings_reportsEveryMistakeAtOnce(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"NAMESPACE": "shop", "CLUSTER_NAME": "orders", "POD_NAME": "orders-1", "POD_UID": "u", "PGHOST": "/controller/run",
	}
	for _, row := range []struct {
		rule   string
		change map[string]string
		bad    []string
	}{
		{"good settings are taken", nil, nil},
		{"a dozing PostgreSQL may request less memory", map[string]string{"DOZE_MEMORY_REQUEST": "64Mi"}, nil},
		{"which is a positive quantity", map[string]string{"DOZE_MEMORY_REQUEST": "0"}, []string{"DOZE_MEMORY_REQUEST"}},
		{"every bad one is named at once", map[string]string{"POD_NAME": "", "PGPORT": "0", "LOG_LEVEL": "loud", "PGHOST": "run", "PRESTOP_MARKER": "run/x"}, []string{"POD_NAME", "PGPORT", "LOG_LEVEL", "PGHOST", "PRESTOP_MARKER"}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			s, err := readSettings(func(name string) string {
				if value, ok := row.change[name]; ok {
					return value
				}
				return good[name]
			})
			if len(row.bad) == 0 && (err != nil || s.databasePort != 5432 || s.identity.Group != "postgresql.cnpg.io") {
				t.Errorf("got %+v, %v", s, err)
			}
			if want := row.change["DOZE_MEMORY_REQUEST"]; len(row.bad) == 0 && want != "" && s.dozeMemory.String() != want {
				t.Errorf("a dozing PostgreSQL requests %s of memory", s.dozeMemory.String())
			}
			for _, name := range row.bad {
				if err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%s is not named: %v", name, err)
				}
			}
		})
	}
}

func TestRun_refusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		arguments []string
		code      int
		says      string
	}{
		{"the version is printed", []string{"version"}, 0, version},
		{"without a command there is nothing to do", nil, 2, "worker"},
		{"an unknown command is refused", []string{"sleep"}, 2, "sleep"},
		{"arguments are refused", []string{"drain", "now"}, 2, "drain"},
		{"a drain without a worker has nothing to do", []string{"drain"}, 0, ""},
	} {
		var out bytes.Buffer
		if code := run(row.arguments, &out, &out); code != row.code || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: code %d, said %q", row.rule, code, out.String())
		}
	}
}
