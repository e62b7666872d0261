package policies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/apiservertest"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// verdict is what becomes of a value.
type verdict int

const (
	good verdict = iota
	// bad: refused when it is written and by the sidecar.
	bad
	// late: only the sidecar can tell.
	late
)

// rules is the table of what annotations may say: the sidecar's parser and the policy are both held to it.
var rules = []struct {
	key     string
	verdict verdict
	values  []string
}{
	{idle.KeyEnabled, good, []string{"true", "false"}},
	{idle.KeyEnabled, bad, []string{"", "yes", "True", "1", "true ", `"true"`, "tru\\e", "a\nb\tc", "größer"}},
	{idle.KeyInactivityMinutes, good, []string{"30", "0.5", "1", "525600", "525600.0", "0.000000001", "007", "000000001.0"}},
	{idle.KeyInactivityMinutes, bad, []string{"", "0", "0.0", "-1", "+1", "1e3", "0x10", " 1", "1 ", "1\n", "NaN", "Inf", "1.", ".5", "525600.1", "525601", "99999999999", "0000000001", "1.0000000000", "thirty", "1,5", "٣"}},
	{idle.KeyActivity, good, []string{"connections", "queries"}},
	{idle.KeyActivity, bad, []string{"", "transactions", "Queries", "queries,connections"}},
	{idle.KeyWake, good, []string{"on-connect", "manual"}},
	{idle.KeyWake, bad, []string{"", "maybe", "onconnect", "manual;"}},
	{idle.KeyGatewayAddress, good, []string{"accept", "reject"}},
	{idle.KeyGatewayAddress, bad, []string{"", "yes", "Accept"}},
	{idle.KeySidecarUpdate, good, []string{"on-restart", "immediate"}},
	{idle.KeySidecarUpdate, bad, []string{"", "now", "Immediate", "on-restart "}},
	{idle.KeyDatabase, good, []string{"", "orders", "Any Name", "ü;--"}},
	{idle.KeyIgnore, good, []string{
		"user=monitoring application=datadog*; client=10.0.0.0/8", "user=a,user=b;;", " user=a\tdatabase=b ", "application=a=b", "user=user=x",
		"client=10.1.2.3", "client=0.0.0.0/0", "client=fd00::1", "client=::/0", "client=::ffff:10.0.0.1", "client=fd00::/64 user=x*",
		"\u00a0user=a\u2003database=b\u3000", "user=a\vdatabase=b\u0085", many("user=a", 64),
	}},
	{idle.KeyIgnore, bad, []string{
		"", ";", " ", "user", "user=", "usr=x", "=x", "user=a user=b", "client=10.0.0.1 user=a client=10.0.0.2", "user=a; ;user=b", "client=10.0.0",
		"client=10.0.0.256", "client=10.0.0.01", "client=10.0.0.0/33", "client=10.0.0.0/08", "client=host.example.org", "client=fd00::/129",
		"client=fe80::1%eth0", "User=a", "user=a database", "user=a\u00a0user=b", "user=a\u2003x", many("user=a", 65),
	}},
	{idle.KeyIgnore, late, []string{"client=:::", "client=1:2", "client=::1.2.3", "client=12345::"}},
	{idle.KeyKeepAwake, good, []string{
		"Mon-Fri 08:00-18:00 Europe/Berlin; Sat 10:00-12:00 UTC", "Sun 00:00-24:00 UTC", "Sat,Mon-Wed 22:00-06:00 America/Port-au-Prince",
		" Fri-Mon  23:59-00:00   Etc/GMT+1 ", "Mon 08:00-09:00 UTC;\tTue 08:00-09:00 UTC\u00a0", many("Mon 08:00-09:00 UTC", 64),
	}},
	{idle.KeyKeepAwake, bad, []string{
		"", ";", "Mon", "Mon 08:00-09:00", "mon 08:00-09:00 UTC", "Mon- 08:00-09:00 UTC", "Mon, 08:00-09:00 UTC", "Mon-Tue-Wed 08:00-09:00 UTC",
		"Mon 8:00-09:00 UTC", "Mon 08:00-24:01 UTC", "Mon 25:00-26:00 UTC", "Mon 24:00-08:00 UTC", "Mon 08:60-09:00 UTC", "Mon 08:00-08:00 UTC",
		"Mon 08:00-09:00 Local", "Mon 08:00-09:00 UTC;", "Mon\t08:00-09:00 UTC", "Mon 08:00 - 09:00 UTC", "Mon 08:00-09:00 Europe/Zürich",
		many("Mon 08:00-09:00 UTC", 65),
	}},
	{idle.KeyKeepAwake, late, []string{"Mon 08:00-09:00 Europe/Bern", "Mon 08:00-09:00 ../UTC", "Mon 08:00-09:00 CET+1"}},
	{idle.KeyKeepAwakeUntil, good, []string{
		"2026-03-01T18:00:00Z", "2026-03-01T18:00:00.5+01:00", "2024-02-29T00:00:00Z", "2000-02-29T23:59:59-12:30", "0000-01-01T00:00:00Z",
		// Go's parser takes these too.
		"2026-03-01T8:00:00Z", "2026-03-01T18:00:00,5Z", "2026-03-01T18:00:00+24:60",
	}},
	{idle.KeyKeepAwakeUntil, bad, []string{
		"", "tomorrow", "2026-03-01", "2026-03-01 18:00:00Z", "2026-03-01T18:00Z", "2026-03-01T18:00:00", "2026-03-01T18:00:00z", "2026-03-01t18:00:00Z",
		"2026-3-01T18:00:00Z", "2026-13-01T18:00:00Z", "2026-00-01T18:00:00Z", "2026-04-31T18:00:00Z", "2026-01-00T18:00:00Z", "2025-02-29T00:00:00Z",
		"1900-02-29T00:00:00Z", "2026-03-01T24:00:00Z", "2026-03-01T18:60:00Z", "2026-03-01T18:00:60Z", "2026-03-01T18:00:00.Z",
		"2026-03-01T18:00:00+25:00", "2026-03-01T18:00:00+01:61", "2026-03-01T18:00:00+0100", " 2026-03-01T18:00:00Z", "2026-03-01T18:00:00Z\n",
	}},
	{idle.KeyKeepAwakeUntil, late, []string{"2026-03-08T00:00:01Z", "9999-12-31T23:59:59Z"}},
	{idle.KeyAnnounced, good, []string{"", "x"}},
	{idle.KeyGatewayReady, good, []string{"x"}},
	{idle.KeyAsleepSince, good, []string{"x"}},
	{idle.KeyAsleepReason, good, []string{"x"}},
	{idle.KeyLastWake, good, []string{"x"}},
	{idle.KeySuspended, good, []string{"x"}},
	{"xata.io/other", good, []string{"x"}},
	{"xata.io/scale-to-zero", good, []string{"x"}},
	{idle.Prefix + "inactivity-minute", bad, []string{"5", ""}},
	{idle.Prefix + "Enabled", bad, []string{"true"}},
}

func many(item string, count int) string {
	return strings.TrimSuffix(strings.Repeat(item+";", count), ";")
}

// parsed is what the sidecar says of a value, nil if it understands it.
func parsed(key, value string) *idle.Problem {
	_, problems := idle.ParsePolicy(map[string]string{key: value}, now)
	if len(problems) == 0 {
		return nil
	}
	return &problems[0]
}

func TestTheSidecarKeepsTheRules(t *testing.T) {
	t.Parallel()
	for _, rule := range rules {
		for _, value := range rule.values {
			if problem := parsed(rule.key, value); (problem != nil) != (rule.verdict != good) {
				t.Errorf("%s=%q: %v", rule.key, value, problem)
			}
		}
	}
}

// written asks the API server to make a Cluster with that annotation.
func (s *server) written(key, value string) error {
	c := cluster("shop", "asked", "")
	c.Annotations[key] = value
	return s.admin.Create(s.t.Context(), c, client.DryRunAll)
}

// annotate patches annotations of a Cluster; nothing is kept of a dry run.
func (s *server) annotate(name string, annotations map[string]any, options ...client.PatchOption) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	s.must(err)
	return s.admin.Patch(s.t.Context(), cluster("shop", name, ""), client.RawPatch(types.MergePatchType, body), options...)
}

func TestAnnotationsPolicy(t *testing.T) {
	t.Parallel()
	s := begin(t, resources...)
	stale := cluster("shop", "stale", "")
	stale.Annotations[idle.KeyWake], stale.Annotations[idle.Prefix+"typo"] = "maybe", "x"
	s.create(stale)
	s.install("annotations")
	s.comes("the policy holds", func() bool { return byPolicy(s.written(idle.KeyEnabled, "yes")) })

	t.Run("the rules", func(t *testing.T) {
		for _, rule := range rules {
			for _, value := range rule.values {
				err := s.written(rule.key, value)
				if rule.verdict != bad {
					if err != nil {
						t.Errorf("%s=%q is refused: %v", rule.key, value, err)
					}
					continue
				}
				if !byPolicy(err) {
					t.Errorf("%s=%q: not refused by a policy: %v", rule.key, value, err)
					continue
				}
				if said, problem := err.Error(), parsed(rule.key, value); !same(said, problem) {
					t.Errorf("%s=%q: the API server says %s\nthe sidecar %s", rule.key, value, said, problem)
				}
			}
		}
	})
	t.Run("what the sidecar understands is not refused", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		refused := 0
		for range 600 {
			rule := rules[random.IntN(len(rules))]
			value := mutated(random, rule.values[random.IntN(len(rule.values))])
			problem, err := parsed(rule.key, value), s.written(rule.key, value)
			switch {
			case err != nil && problem == nil:
				t.Errorf("%s=%q is refused: %v", rule.key, value, err)
			case err == nil && problem != nil && rule.key != idle.KeyIgnore && rule.key != idle.KeyKeepAwake && rule.key != idle.KeyKeepAwakeUntil:
				t.Errorf("%s=%q is let through, and the sidecar says %s", rule.key, value, problem)
			case err != nil:
				refused++
			}
		}
		if refused < 100 {
			t.Errorf("only %d values were refused: the mutations try nothing", refused)
		}
	})
	t.Run("types", func(t *testing.T) {
		s.install("instances")
		s.typed(t)
	})
	t.Run("only what changes is looked at", func(t *testing.T) {
		for _, row := range []struct {
			rule        string
			annotations map[string]any
			refused     bool
		}{
			{"another annotation of a Cluster with bad values", map[string]any{"example.org/note": "y"}, false},
			{"a good value beside bad ones", map[string]any{idle.KeyInactivityMinutes: "5"}, false},
			{"the bad value once more", map[string]any{idle.KeyWake: "maybe"}, false},
			{"the bad values away", map[string]any{idle.KeyWake: nil, idle.Prefix + "typo": nil}, false},
			{"the bad value made good", map[string]any{idle.KeyWake: "manual"}, false},
			{"the bad value made another bad one", map[string]any{idle.KeyWake: "perhaps"}, true},
			{"the unknown one changed", map[string]any{idle.Prefix + "typo": "y"}, true},
			{"a new bad value", map[string]any{idle.KeyActivity: "none"}, true},
			{"a good and a bad one", map[string]any{idle.KeyEnabled: "false", idle.KeyActivity: "none"}, true},
			{"all away", nil, false},
		} {
			if err := s.annotate("stale", row.annotations, client.DryRunAll); byPolicy(err) != row.refused || err != nil && !row.refused {
				t.Errorf("%s: refused %t: %v", row.rule, err != nil, err)
			}
		}
		scale := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"instances":3}}`))
		if err := s.admin.Patch(t.Context(), cluster("shop", "stale", ""), scale); err != nil {
			t.Errorf("a Cluster with bad values cannot be scaled: %v", err)
		}
		if err := s.admin.Status().Patch(t.Context(), cluster("shop", "stale", ""), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"x"}}`))); err != nil {
			t.Errorf("its status cannot be written: %v", err)
		}
	})
}

// asCEL gives what Go quotes and CEL leaves as it is.
var asCEL = strings.NewReplacer(`\u00a0`, "\u00a0", `\u2003`, "\u2003")

// The controller manager, which looks at every policy with the schema in hand, finds fields that there are not.
func (s *server) typed(t *testing.T) {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthorityData: s.config.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: s.config.CertData, ClientKeyData: s.config.KeyData}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	s.must(clientcmd.WriteToFile(*kubeconfig, path))
	manager := exec.CommandContext(t.Context(), apiservertest.Program(t), "kube-controller-manager", "--kubeconfig", path, "--leader-elect=false",
		"--controllers=validatingadmissionpolicy-status-controller", "--secure-port=0")
	var said bytes.Buffer
	manager.Stdout, manager.Stderr = &said, &said
	s.must(manager.Start())
	defer func() {
		_ = manager.Process.Kill()
		_ = manager.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	var policies admissionv1.ValidatingAdmissionPolicyList
	s.comes("the types are checked", func() bool {
		s.must(s.admin.List(t.Context(), &policies))
		return !slices.ContainsFunc(policies.Items, func(p admissionv1.ValidatingAdmissionPolicy) bool { return p.Status.TypeChecking == nil })
	})
	if len(policies.Items) != 4 {
		t.Errorf("%d policies", len(policies.Items))
	}
	for i := range policies.Items {
		for _, warning := range policies.Items[i].Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", policies.Items[i].Name, warning.FieldRef, warning.Warning)
		}
	}
}

// same tells whether the API server's words end with the sidecar's. Of a list the policy cannot tell which item it is.
func same(said string, problem *idle.Problem) bool {
	if problem.Key != idle.KeyIgnore && problem.Key != idle.KeyKeepAwake {
		return strings.HasSuffix(said, "denied request: "+problem.String())
	}
	_, allowed, found := strings.Cut(problem.Allowed, "; allowed is ")
	want := fmt.Sprintf("denied request: annotation %s has the value %q: allowed is %s", problem.Key, problem.Value, allowed)
	return found && strings.HasSuffix(said, asCEL.Replace(want))
}

// mutated changes a value in one or two places.
func mutated(random *rand.Rand, value string) string {
	const letters = "0123456789 ;,:=-+./*TZaeu\t\u00a0"
	runes := []rune(value)
	for range 1 + random.IntN(2) {
		letter := []rune(letters)[random.IntN(len([]rune(letters)))]
		at := random.IntN(len(runes) + 1)
		switch {
		case at == len(runes) || random.IntN(3) == 0:
			runes = append(runes[:at], append([]rune{letter}, runes[at:]...)...)
		case random.IntN(2) == 0:
			runes[at] = letter
		default:
			runes = append(runes[:at], runes[at+1:]...)
		}
	}
	return string(runes)
}
