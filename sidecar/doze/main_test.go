package doze

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Processes for tests.
var (
	none   = Postmaster{}
	first  = Postmaster{Running: true, PID: 22, Started: 1795393100}
	second = Postmaster{Running: true, PID: 22, Started: 1795393107}
)
