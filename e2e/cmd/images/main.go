// Command images writes the images of the plugin and of the sidecar as docker-archive tarballs, and with -neighbour that of the
// other plugin that the tests need.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
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
	programs := []program{
		{module: *module, path: "plugin", name: "cnpg-i-scale-to-zero"},
		{
			module: *module, path: "sidecar/supervisor", name: "cnpg-i-scale-to-zero-sidecar",
			archive: "sidecar", beside: map[string]string{"sidecar": "./sidecar"},
		},
	}
	if *neighbour {
		programs = append(programs, program{module: filepath.Join(*module, "e2e"), path: "neighbour", name: "cnpg-i-scale-to-zero-neighbour"})
	}
	if err := run(ctx, programs, *output, *registry, *tag); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// program is an image to write.
type program struct {
	// module and path are where the program is that the image starts, name what the image's name ends with.
	module, path, name string
	// archive is the name of the archive; the program's, if it is not given.
	archive string
	// beside are further programs in the image.
	beside map[string]string
}

func run(ctx context.Context, programs []program, directory, registry, tag string) error {
	for _, p := range programs {
		image := images.Program{
			Module: p.module, Package: "./" + p.path, Binary: path.Base(p.path), Beside: p.beside, Version: tag,
			Name: fmt.Sprintf("%s/%s:%s", registry, p.name, tag),
		}
		file := filepath.Join(directory, cmp.Or(p.archive, path.Base(p.path))+".tar")
		if err := image.Build(ctx, file); err != nil {
			return err
		}
		fmt.Println(image.Name, "->", file)
	}
	return nil
}
