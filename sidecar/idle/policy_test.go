package idle

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	minutes := func(value string) map[string]string {
		return map[string]string{KeyEnabled: "true", KeyInactivityMinutes: value}
	}
	for _, row := range []struct {
		rule        string
		annotations map[string]string
		want        Policy
		bad         []string
	}{
		{"without annotations the feature is off and the threshold half an hour", nil, Policy{Threshold: 30 * time.Minute}, nil},
		{"true turns it on", map[string]string{KeyEnabled: "true"}, Policy{Enabled: true, Threshold: 30 * time.Minute}, nil},
		{"false turns it off", map[string]string{KeyEnabled: "false"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"minutes may have decimals", minutes("0.5"), Policy{Enabled: true, Threshold: 30 * time.Second}, nil},
		{"a year is allowed", minutes("525600"), Policy{Enabled: true, Threshold: 525600 * time.Minute}, nil},
		{"a database may be named", map[string]string{KeyDatabase: "orders"}, Policy{Threshold: 30 * time.Minute, Database: "orders", DatabaseSet: true}, nil},
		{"an empty database means none", map[string]string{KeyDatabase: ""}, Policy{Threshold: 30 * time.Minute, DatabaseSet: true}, nil},
		{"annotations of others are passed over", map[string]string{"xata.io/other": "x", "cnpg.io/hibernation": "on"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"what the parts write is passed over", map[string]string{KeyAsleepSince: "x", KeyGatewayReady: "y"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"the ways of waking are known", map[string]string{KeyWake: "manual", KeyActivity: "connections"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"True is not true", map[string]string{KeyEnabled: "True"}, Policy{Threshold: 30 * time.Minute}, []string{KeyEnabled}},
		{"every problem is reported at once, sorted", map[string]string{KeyEnabled: "yes", KeyInactivityMinutes: "0", KeyActivity: "queries", KeyIgnore: "user=x", Prefix + "inactivity-minute": "5"}, Policy{Threshold: 30 * time.Minute}, []string{KeyActivity, KeyEnabled, KeyIgnore, Prefix + "inactivity-minute", KeyInactivityMinutes}},
		{"a problem elsewhere turns the feature off", map[string]string{KeyEnabled: "true", KeyWake: "maybe"}, Policy{Threshold: 30 * time.Minute}, []string{KeyWake}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got, problems := ParsePolicy(row.annotations)
			var bad []string
			for _, problem := range problems {
				bad = append(bad, problem.Key)
				for _, part := range []string{problem.Key, strconv.Quote(problem.Value), problem.Allowed} {
					if !strings.Contains(problem.String(), part) {
						t.Errorf("%q does not say %q", problem, part)
					}
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.bad, bad); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	for _, value := range []string{"", "0", "0.0", "-1", "+1", "1e3", "0x10", " 1", "1 ", "NaN", "Inf", "1.", ".5", "525600.1", "99999999999", "thirty", "1,5"} {
		if policy, problems := ParsePolicy(minutes(value)); len(problems) != 1 || policy.Enabled {
			t.Errorf("minutes %q: %d problems, enabled %t", value, len(problems), policy.Enabled)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add("true", "30")
	f.Add("false", "0.5")
	f.Fuzz(func(t *testing.T, enabled, minutes string) {
		policy, problems := ParsePolicy(map[string]string{KeyEnabled: enabled, KeyInactivityMinutes: minutes})
		if len(problems) != 0 && policy.Enabled {
			t.Error("a policy with problems is enabled")
		}
		if policy.Threshold <= 0 {
			t.Errorf("the threshold is %s", policy.Threshold)
		}
	})
}

// The core stays pure: no clock, no input or output, nothing but the standard library.
func TestImportsOfTheCore(t *testing.T) {
	t.Parallel()
	allowed := []string{"fmt", "regexp", "slices", "strconv", "strings", "time"}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", file, path)
			}
		}
	}
}
