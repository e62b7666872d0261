package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/uninstall"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// checkUninstall reports whether the plugin can be removed.
func checkUninstall(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("check-uninstall", flag.ContinueOnError)
	flags.SetOutput(stderr)
	group := flags.String("group", contract.DefaultCNPGGroup, "API group of the Cluster resource")
	version := flags.String("version", contract.DefaultCNPGVersion, "API version of the Cluster resource")
	within := flags.Duration("within", time.Minute, "how long the plugin is given to remove what it made")
	if err := flags.Parse(arguments); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	if flags.NArg() != 0 {
		return fmt.Errorf("argument %q is not understood: all settings are flags", flags.Arg(0))
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	reader, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if err := uninstall.Check(ctx, reader, schema.GroupVersion{Group: *group, Version: *version}, *within); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(stdout, "no Cluster lists the plugin: it can be removed")
	return nil
}
