package tests

import (
	"testing"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The sidecar's own connections do not count, whatever PostgreSQL's authentication rules let them do.
func TestSleep_ownConnectionsDoNotCount(t *testing.T) {
	whole(t)
	t.Parallel()
	for name, rules := range map[string][]string{
		"everybody is trusted":          {"host all all all trust"},
		"local clients are trusted":     {"host all all 127.0.0.1/32 trust"},
		"clients need a certificate":    {"hostssl all all all cert", "hostnossl all all all reject"},
		"local clients are turned away": {"host all all 127.0.0.1/32 reject"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			c := kube.NewCluster(s.namespace, "own", 1, never)
			c.Spec.PostgresConfiguration.PgHBA = rules
			s.starts(c)
			s.listens(c) // only then are its own connections at their most frequent: one that counted would come every two seconds
			s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
			s.fallsAsleep(c, "put to sleep")
		})
	}
}
