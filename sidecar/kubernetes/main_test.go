package kubernetes

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// update rewrites the golden files with what the code does now: go test ./sidecar/kubernetes -update.
var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
