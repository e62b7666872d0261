package audit

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden file anew")

// roles are the rules of the roles of that name in a file of manifests.
func roles(t *testing.T, file, name string) []rbacv1.PolicyRule {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rules []rbacv1.PolicyRule
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(role.Kind, "Role") && role.Name == name {
			rules = append(rules, role.Rules...)
		}
	}
	if rules == nil {
		t.Fatalf("%s has no role %s", file, name)
	}
	return rules
}

// The log is of the real plugin, at a real API server with the policy of the harness, shortly after its start: it has made the
// Role of one cluster. The sidecar's requests were made by hand, three of them refused; one line is of another program with
// the same account.
func TestARealLogAgainstTheShippedRoles(t *testing.T) {
	t.Parallel()
	log, err := os.Open("testdata/audit.log")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	requests, err := Read(log)
	if err != nil {
		t.Fatal(err)
	}
	const manifests = "../../manifests/"
	var got strings.Builder
	for _, account := range Accounts(requests, roles(t, manifests+"base/rights/rights.yaml", Plugin),
		roles(t, manifests+"components/self-provisioned-certificates/certificates.yaml", Certificates)) {
		got.WriteString(Compare(account, requests).Report(account.Spared))
	}
	const golden = "testdata/report.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("report (-want +got), -update writes it:\n%s", diff)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	get, patch := Call{"get", "", "pods", ""}, Call{"patch", "", "pods", ""}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "patch"}}}
	used := Request{Call: get, Code: 200}
	for _, row := range []struct {
		rule     string
		account  Account
		requests []Request
		ok       bool
	}{
		{"rights that are all used are right", Account{Rules: rules}, []Request{used, {Call: patch, Code: 200}}, true},
		{"a right that is not used is one too many", Account{Rules: rules}, []Request{used}, false},
		{"unless it is spared", Account{Rules: rules, Spared: map[Call]string{patch: "why"}}, []Request{used}, true},
		{"or held to be handed on", Account{Rules: rules, Grants: rules}, []Request{used}, true},
		{"a conflict is a use", Account{Rules: rules}, []Request{used, {Call: patch, Code: 409}}, true},
		{"what is spared must be a right", Account{Rules: rules[:0], Spared: map[Call]string{patch: "why"}}, []Request{used}, false},
		{"a request that no role permits is a right too few", Account{Rules: rules}, []Request{used, {Call: patch, Code: 200}, {Call: Call{"delete", "", "pods", ""}, Code: 403, Forbidden: true}}, false},
		{"so is one that admission refuses", Account{Rules: rules}, []Request{used, {Call: patch, Code: 403, Message: "ValidatingAdmissionPolicy 'a' denied request"}, {Call: patch, Code: 200}}, false},
		{"in a namespace that is being deleted nobody may make anything", Account{Rules: rules}, []Request{used, {Call: patch, Code: 403, Message: "namespace gone because it is being terminated"}, {Call: patch, Code: 200}}, true},
		{"a quota is no right", Account{Rules: rules}, []Request{used, {Call: patch, Code: 403, Message: `pods "a-1" is forbidden: exceeded quota: cpu, requested: requests.cpu=1`}, {Call: patch, Code: 200}}, true},
		{"rights that come and go may be missed for a while", Account{Rules: rules, Passing: true}, []Request{used, {Call: patch, Code: 403, Forbidden: true}, {Call: patch, Code: 200}}, true},
		{"others may not", Account{Rules: rules}, []Request{used, {Call: patch, Code: 403, Forbidden: true}, {Call: patch, Code: 200}}, false},
		{"without a request nothing is shown", Account{}, nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			row.account.Is = func(Request) bool { return true }
			if finding := Compare(row.account, row.requests); finding.OK() != row.ok {
				t.Errorf("OK is %t:\n%s", finding.OK(), finding.Report(row.account.Spared))
			}
		})
	}
}

// A test tries with the plugin's token what must be refused: that is not the plugin.
func TestAccounts_areThoseOfTheProjectsPrograms(t *testing.T) {
	t.Parallel()
	user := users + Namespace + ":" + Plugin
	for agent, want := range map[string]bool{"plugin/v0.0.0 (linux/amd64) kubernetes/$Format": true, "tests.test/v0.0.0 (linux/amd64) kubernetes/$Format": false} {
		if got := Accounts(nil, nil, nil)[0].Is(Request{User: user, Agent: agent}); got != want {
			t.Errorf("%s is the plugin: %t, want %t", agent, got, want)
		}
	}
}
