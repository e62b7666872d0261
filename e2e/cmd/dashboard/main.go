// Command dashboard writes the Grafana dashboard into the manifests.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
)

func main() {
	module := flag.String("module", "..", "directory of the module")
	flag.Parse()
	body, err := monitoring.Dashboard()
	if err == nil {
		err = os.WriteFile(filepath.Join(*module, "manifests", "components", "monitoring", "dashboard.json"), body, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}
