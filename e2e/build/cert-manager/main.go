// Command cert-manager is the programs of cert-manager that issue certificates, in one binary: COMPONENT chooses the controller,
// the webhook or the CA injector, since cert-manager's chart can set variables and no command. Their own commands are in modules
// that the module proxy does not have, so this one puts together the packages that they consist of, with the same defaults.
// Issuers but the self-signed and the CA's are left out. Its path is below cert-manager's because some packages are internal to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	logf "github.com/cert-manager/cert-manager/pkg/logs"
)

func main() {
	components := map[string]func(context.Context, []string) error{"controller": controller, "webhook": webhook, "cainjector": injector}
	component := os.Getenv("COMPONENT")
	if components[component] == nil {
		fmt.Fprintf(os.Stderr, "cert-manager: COMPONENT is %q: it must be controller, webhook or cainjector\n", component)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	logf.InitLogs()
	ctx = logf.NewContext(ctx, logf.Log, component)
	if err := components[component](ctx, os.Args[1:]); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "cert-manager:", err)
		os.Exit(1)
	}
}

// parse reads the flags that are added; cert-manager's chart gives others too.
func parse(arguments []string, add func(*pflag.FlagSet)) error {
	flags := pflag.NewFlagSet("cert-manager", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	add(flags)
	return flags.Parse(arguments)
}
