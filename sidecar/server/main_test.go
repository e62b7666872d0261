package server

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// update rewrites the golden files: go test ./sidecar/server -update.
var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
