package audit

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Names of the accounts that the manifests make, in the operator's namespace.
const (
	Namespace    = "cnpg-system"
	Plugin       = "cnpg-scale-to-zero-plugin"
	Certificates = "cnpg-scale-to-zero-certificates"
)

const (
	// users begins the name of every service account.
	users = "system:serviceaccount:"
	// sidecarAgent is what the sidecars call themselves; the instance manager beside them has the same account.
	sidecarAgent = "cnpg-i-scale-to-zero"
	// pluginAgent is how client-go names the plugin's program.
	pluginAgent = "plugin/"
	rbac        = "rbac.authorization.k8s.io"
)

// Accounts are those of the project. plugin and certificates are the rules of their roles; the sidecars' rules are those of
// the Roles that the plugin wrote.
func Accounts(requests []Request, plugin, certificates []rbacv1.PolicyRule) []Account {
	granted := written(requests)
	return []Account{
		{Name: "the plugin", Is: named(Plugin), Rules: plugin, Grants: granted, Spared: spared(plugin), Passing: true},
		{Name: "the certificates", Is: named(Certificates), Rules: certificates, Passing: true},
		{
			Name: "the sidecars", Rules: granted, Passing: true,
			Is: func(r Request) bool { return strings.HasPrefix(r.User, users) && r.Agent == sidecarAgent },
		},
	}
}

// spared are the calls that the plugin need not make in a run.
func spared(rules []rbacv1.PolicyRule) map[Call]string {
	calls := map[Call]string{
		{"create", "discovery.k8s.io", "endpointslices", "restricted"}: "only OpenShift asks for it",
		{"update", "discovery.k8s.io", "endpointslices", ""}:           "a slice is mended when its Service's port or the plugin's address changes, or another client changed it",
		{"patch", "", "events", ""}:                                    "an Event that is repeated is patched, and none need be",
		{"update", rbac, "roles", ""}:                                  "a Role is mended when another client changed it, or another version of the plugin wrote it",
		{"update", rbac, "rolebindings", ""}:                           "as a Role, and when a cluster gets another service account",
	}
	for _, call := range Granted(rules) {
		if call.Verb == "watch" {
			call.Verb = "list"
			calls[call] = "a watch begins with a list where the API server cannot send the state as events (Kubernetes before 1.34)"
		}
	}
	return calls
}

// named reports whether the plugin's program made a request with a service account of the operator's namespace. Tests also use the
// plugin's token, for requests that must be refused.
func named(account string) func(Request) bool {
	user := users + Namespace + ":" + account
	return func(r Request) bool { return r.User == user && strings.HasPrefix(r.Agent, pluginAgent) }
}

// written are the rules of all Roles that the plugin wrote.
func written(requests []Request) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	is := named(Plugin)
	for _, request := range requests {
		if is(request) && request.Call.Group == rbac && request.Call.Resource == "roles" && request.Code < 300 {
			rules = append(rules, request.Grants...)
		}
	}
	return slices.Clip(rules)
}
