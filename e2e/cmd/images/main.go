// Command images writes the images of the plugin and of the sidecar as docker-archive tarballs.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

func main() {
	tag := flag.String("tag", "dev", "tag and version")
	registry := flag.String("registry", "localhost", "what the names begin with")
	module := flag.String("module", "..", "directory of the module")
	flag.Parse()
	for _, p := range []struct{ binary, name string }{{"plugin", "cnpg-i-scale-to-zero"}, {"sidecar", "cnpg-i-scale-to-zero-sidecar"}} {
		program := images.Program{
			Module: *module, Package: "./" + p.binary, Binary: p.binary, Version: *tag,
			Name: fmt.Sprintf("%s/%s:%s", *registry, p.name, *tag),
		}
		file := filepath.Join(*module, "build", p.binary+".tar")
		if err := program.Build(file); err != nil {
			fmt.Fprintln(os.Stderr, "images:", err)
			os.Exit(1)
		}
		fmt.Println(program.Name, "->", file)
	}
}
