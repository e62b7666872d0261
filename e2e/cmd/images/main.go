// Command images writes the images of the plugin and of the sidecar as docker-archive tarballs, and with -neighbour that of the
// other plugin that the tests need.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
	"github.com/cnpg-i/scale-to-zero/e2e/program"
)

func main() {
	tag := flag.String("tag", "dev", "tag and version")
	registry := flag.String("registry", "localhost", "what the names begin with")
	module := flag.String("module", "..", "directory of the module")
	output := flag.String("output", "", "directory of the archives; build in that of the module if not given")
	neighbour := flag.Bool("neighbour", false, "write the image of the other plugin that the tests need, too")
	flag.Parse()
	write := func(ctx context.Context, archive, suffix string, image images.Program) error {
		image.Name, image.Version = fmt.Sprintf("%s/cnpg-i-scale-to-zero%s:%s", *registry, suffix, *tag), *tag
		file := filepath.Join(cmp.Or(*output, filepath.Join(*module, "build")), archive+".tar")
		if err := image.Build(ctx, file); err != nil {
			return err
		}
		fmt.Println(image.Name, "->", file)
		return nil
	}
	program.Run("images", func(ctx context.Context) error {
		if err := write(ctx, "plugin", "", images.Program{Module: *module, Package: "./plugin"}); err != nil {
			return err
		}
		beside := map[string]string{"sidecar": "./sidecar"}
		sidecar := images.Program{Module: *module, Package: "./sidecar/supervisor", Beside: beside}
		if err := write(ctx, "sidecar", "-sidecar", sidecar); err != nil || !*neighbour {
			return err
		}
		other := images.Program{Module: filepath.Join(*module, "e2e"), Package: "./neighbour"}
		return write(ctx, "neighbour", "-neighbour", other)
	})
}
