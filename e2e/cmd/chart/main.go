// Command chart packages the Helm chart of a release, whose images have a tag.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/e2e/chart"
)

func main() {
	tag := flag.String("tag", "", "tag of the images, a semantic version with or without a v before it")
	registry := flag.String("registry", "localhost", "what the images' names begin with")
	module := flag.String("module", "..", "directory of the module")
	flag.Parse()
	file, err := chart.Package(filepath.Join(*module, "manifests", "chart"), *registry, *tag, filepath.Join(*module, "build"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}
