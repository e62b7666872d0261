// Command images writes the images of the plugin and of the sidecar as docker-archive tarballs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

func main() {
	tag := flag.String("tag", "dev", "tag and version")
	registry := flag.String("registry", "localhost", "what the names begin with")
	module := flag.String("module", "..", "directory of the module")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *module, *registry, *tag); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, module, registry, tag string) error {
	for _, p := range []struct{ binary, name string }{{"plugin", "cnpg-i-scale-to-zero"}, {"sidecar", "cnpg-i-scale-to-zero-sidecar"}} {
		program := images.Program{
			Module: module, Package: "./" + p.binary, Binary: p.binary, Version: tag,
			Name: fmt.Sprintf("%s/%s:%s", registry, p.name, tag),
		}
		file := filepath.Join(module, "build", p.binary+".tar")
		if err := program.Build(ctx, file); err != nil {
			return err
		}
		fmt.Println(program.Name, "->", file)
	}
	return nil
}
