package audit

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Account is one holder of rights.
type Account struct {
	// Name is for the report.
	Name string
	// Is tells whether a request is the account's.
	Is func(Request) bool
	// Rules are what its roles permit.
	Rules []rbacv1.PolicyRule
	// Grants are what it may give to others, and so must hold itself.
	Grants []rbacv1.PolicyRule
	// Spared are the calls that a run need not make, each with the reason.
	Spared map[Call]string
	// Passing says that its rights come and go with clusters or an installation, so that requests may be refused before a right exists or
	// after it is gone.
	Passing bool
}

// Finding is the result of comparing one account's rights with its requests.
type Finding struct {
	Account string
	// Requests is how many it made.
	Requests int
	// Used are the calls that it made and may make, Held those that it only hands on, Spared those that need not be made.
	Used, Held, Spared []Call
	// Unused are the calls that it may make and never made.
	Unused []Call
	// Refused are the requests that were refused, each kind once.
	Refused []string
	// Passing is how many requests were refused before the right had come, or after it had gone.
	Passing int
	// Strange are spared calls that no rule permits: the list is out of date.
	Strange []Call
}

// Compare looks at the requests of one account.
func Compare(account Account, requests []Request) Finding {
	finding := Finding{Account: account.Name}
	used := map[Call]bool{}
	granted, held := Granted(account.Rules), Granted(account.Grants)
	for _, request := range requests {
		if !account.Is(request) {
			continue
		}
		finding.Requests++
		if request.Forbidden && account.Passing && slices.Contains(granted, request.Call) {
			finding.Passing++
			continue
		}
		if request.refused() {
			finding.Refused = append(finding.Refused, strings.TrimSpace(fmt.Sprintf("%s: %d %s", request.Call, request.Code, request.Message)))
			continue
		}
		used[request.Call] = true
	}
	slices.Sort(finding.Refused)
	finding.Refused = slices.Compact(finding.Refused)
	for _, call := range granted {
		_, spared := account.Spared[call]
		switch {
		case used[call]:
			finding.Used = append(finding.Used, call)
		case slices.Contains(held, call):
			finding.Held = append(finding.Held, call)
		case spared:
			finding.Spared = append(finding.Spared, call)
		default:
			finding.Unused = append(finding.Unused, call)
		}
	}
	for call := range account.Spared {
		if !slices.Contains(granted, call) {
			finding.Strange = append(finding.Strange, call)
		}
	}
	finding.Strange = ordered(finding.Strange)
	return finding
}

// OK tells whether every right was used and every request permitted.
func (f Finding) OK() bool {
	return f.Requests > 0 && len(f.Unused) == 0 && len(f.Refused) == 0 && len(f.Strange) == 0
}

// Report says it to a person, with the reason of every exception.
func (f Finding) Report(spared map[Call]string) string {
	var report strings.Builder
	fmt.Fprintf(&report, "%s: %d requests; of its rights %d used, %d held to be handed on, %d spared, %d unused; %d kinds refused\n",
		f.Account, f.Requests, len(f.Used), len(f.Held), len(f.Spared), len(f.Unused), len(f.Refused))
	if f.Requests == 0 {
		report.WriteString("  NO REQUEST: the log is not that of a run\n")
	}
	if f.Passing > 0 {
		fmt.Fprintf(&report, "  %d requests came before the right or after it\n", f.Passing)
	}
	for _, call := range f.Held {
		fmt.Fprintf(&report, "  held: %s\n", call)
	}
	for _, call := range f.Spared {
		fmt.Fprintf(&report, "  spared: %s: %s\n", call, spared[call])
	}
	for _, call := range f.Unused {
		fmt.Fprintf(&report, "  UNUSED: %s\n", call)
	}
	for _, refusal := range f.Refused {
		fmt.Fprintf(&report, "  REFUSED: %s\n", refusal)
	}
	for _, call := range f.Strange {
		fmt.Fprintf(&report, "  SPARED BUT NOT GRANTED: %s\n", call)
	}
	return report.String()
}
