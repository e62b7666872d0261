package postgres

import (
	"testing"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

func TestPasswordSet_isWhatHappenedSinceTheStart(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := serverOf(s)
		expect := func(rule, role string, want bool) {
			t.Helper()
			if set, err := server.PasswordSet(t.Context(), role); err != nil || set != want {
				t.Errorf("%s: %t, %v, want %t", rule, set, err, want)
			}
		}
		s.Execute(t, "create role app login password 'old'")
		expect("a role that was just created", "app", true)
		s.Stop(t)
		s.Start(t)
		expect("after a start", "app", false)
		s.Execute(t, "create table written as select 1")
		expect("whatever else was written", "app", false)
		expect("a role that does not exist", "nobody", true)
		s.Execute(t, "alter role app password 'old'")
		expect("the same password, set again", "app", true)
	})
}
