package kubernetes

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// update rewrites the golden files: go test ./sidecar/kubernetes -update.
var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil // one of them sleeps by a clock outside the synctest bubble
	goleak.VerifyTestMain(m)
}
