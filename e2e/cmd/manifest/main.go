// Command manifest renders what is to be installed as one YAML file that uses the images of a tag.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/e2e/install"
)

func main() {
	tag := flag.String("tag", "dev", "tag of the images")
	registry := flag.String("registry", "localhost", "what the images' names begin with")
	module := flag.String("module", "..", "directory of the module")
	flag.Parse()
	body, err := install.Render(filepath.Join(*module, "manifests", "install"), *registry, *tag)
	if err == nil {
		file := filepath.Join(*module, "build", "install.yaml")
		if err = os.MkdirAll(filepath.Dir(file), 0o755); err == nil {
			err = os.WriteFile(file, body, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "manifest:", err)
		os.Exit(1)
	}
}
