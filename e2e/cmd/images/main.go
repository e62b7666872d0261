// Command images writes the images of the plugin and of the sidecar as docker-archive tarballs, and with -neighbour that of the
// other plugin that the tests need.
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
	output := flag.String("output", "", "directory of the archives; build in that of the module if not given")
	neighbour := flag.Bool("neighbour", false, "write the image of the other plugin that the tests need, too")
	flag.Parse()
	if *output == "" {
		*output = filepath.Join(*module, "build")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	programs := []program{{*module, "plugin", "cnpg-i-scale-to-zero"}, {*module, "sidecar", "cnpg-i-scale-to-zero-sidecar"}}
	if *neighbour {
		programs = append(programs, program{filepath.Join(*module, "e2e"), "neighbour", "cnpg-i-scale-to-zero-neighbour"})
	}
	if err := run(ctx, programs, *output, *registry, *tag); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// program is a package of a module, and what the name of its image ends with.
type program struct{ module, binary, name string }

func run(ctx context.Context, programs []program, directory, registry, tag string) error {
	for _, p := range programs {
		image := images.Program{
			Module: p.module, Package: "./" + p.binary, Binary: p.binary, Version: tag,
			Name: fmt.Sprintf("%s/%s:%s", registry, p.name, tag),
		}
		file := filepath.Join(directory, p.binary+".tar")
		if err := image.Build(ctx, file); err != nil {
			return err
		}
		fmt.Println(image.Name, "->", file)
	}
	return nil
}
