package wake

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestFirstPass_isOutstandingUntilEachClusterPassedOrIsGivenUp(t *testing.T) {
	t.Parallel()
	bad := errors.New("no EndpointSlices today")
	sales := types.NamespacedName{Namespace: "shop", Name: "sales"}
	both := []types.NamespacedName{orders, sales}
	failures := func(count int) (noted []error) {
		for range count {
			noted = append(noted, bad)
		}
		return noted
	}
	for _, row := range []struct {
		rule  string
		noted []error // of orders
		ended bool
		want  int
		told  int // how often it was given up
	}{
		{"nothing has passed at first", nil, false, 2, 0},
		{"one that passed is not waited for", []error{nil}, false, 1, 0},
		{"one that failed is", []error{bad}, false, 2, 0},
		{"one that passed later is not", []error{bad, nil}, false, 1, 0},
		{"one that failed later has passed", append([]error{nil}, failures(firstTries)...), false, 1, 0},
		{"one that fails again and again is, for a while", failures(firstTries - 1), false, 2, 0},
		{"then it is given up, which is said once", failures(2 * firstTries), false, 1, 1},
		{"after the end nothing is waited for, nor given up", nil, true, 0, 0},
	} {
		var pass firstPass
		told := 0
		for _, err := range row.noted {
			if pass.note(orders, err) {
				told++
			}
		}
		if row.ended {
			pass.end()
			for _, err := range failures(firstTries) {
				if pass.note(orders, err) {
					told++
				}
			}
		}
		if got := pass.outstanding(both); got != row.want || told != row.told {
			t.Errorf("%s: %d outstanding, given up %d times, want %d and %d", row.rule, got, told, row.want, row.told)
		}
	}
}
