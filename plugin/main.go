// Command plugin is the CNPG-I plugin. `plugin plugin` serves the operator; `plugin certificates` creates and renews
// the two Secrets for mutual TLS; `plugin check-uninstall` reports whether the plugin can be removed; `plugin version`
// prints the version.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // the time zones for keep-awake windows, which the image lacks

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/config"
)

// version is set by the linker.
var version = "development"

const usage = "plugin: the first argument must be plugin, certificates, check-uninstall or version"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(arguments []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(arguments) == 0 {
		_, _ = fmt.Fprintln(stderr, usage)
		return 2
	}
	var err error
	switch part, rest := arguments[0], arguments[1:]; part {
	case "plugin":
		err = serveOperator(ctx, rest, stdout, stderr)
	case "certificates":
		err = makeCertificates(ctx, rest, stdout, stderr)
	case "check-uninstall":
		err = checkUninstall(ctx, rest, stdout, stderr)
	case "version":
		_, _ = fmt.Fprintln(stdout, version)
	default:
		_, _ = fmt.Fprintf(stderr, "%s, not %q\n", usage, part)
		return 2
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "plugin:", err)
		return 1
	}
	return 0
}

// collectAt starts a garbage collection when the heap has grown by a quarter of the live heap, not when it has doubled:
// the informers of 10,000 clusters hold 180 MiB permanently, and their ports 40, and Go would let as much again
// accumulate. At rest almost nothing is allocated, so this costs nothing; while 18,500 ports were opened, all
// collections together took 9 % of two cores.
const collectAt = 25

func serveOperator(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	debug.SetGCPercent(collectAt)
	c, err := config.Parse(arguments, os.LookupEnv, stderr)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewJSONHandler(stdout, &slog.HandlerOptions{Level: c.LogLevel}))
	if !c.SidecarResources.KeepGuaranteed() {
		logger.Warn("the sidecar's requests differ from its limits: a pod of the class Guaranteed becomes Burstable with it")
	}
	return serve(ctx, c, logger)
}

// checkEvery is how often the Secrets are read with -keep: while one is missing, the operator reconciles no cluster
// that lists the plugin.
const checkEvery = time.Minute

func makeCertificates(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("certificates", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var names cnpgi.CertificateNames
	flags.StringVar(&names.Namespace, "namespace", "cnpg-system", "the operator's namespace")
	flags.StringVar(&names.Service, "service", "scale-to-zero", "the plugin's Service")
	flags.StringVar(&names.ServerSecret, "server-secret", "scaletozero-server-tls", "Secret of the plugin's certificate")
	flags.StringVar(&names.ClientSecret, "client-secret", "scaletozero-client-tls", "Secret of the operator's certificate")
	keep := flags.Bool("keep", false, "keep running and renew them in time")
	if err := flags.Parse(arguments); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	logger := slog.New(slog.NewJSONHandler(stdout, nil))
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	written, err := cnpgi.EnsureCertificates(ctx, client, names, time.Now())
	if err != nil {
		return err
	}
	logger.Info("the certificates are valid", "written", strings.Join(written, ","))
	if *keep {
		keepCertificates(ctx, client, names, logger)
	}
	return nil
}

// keepCertificates reads the Secrets until the context ends, and writes what is missing, invalid or due.
func keepCertificates(
	ctx context.Context, client kubernetes.Interface, names cnpgi.CertificateNames, logger *slog.Logger,
) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		switch written, err := cnpgi.EnsureCertificates(ctx, client, names, time.Now()); {
		case err != nil:
			logger.Error("cannot keep the certificates", "error", err.Error())
		case len(written) != 0:
			logger.Info("certificates were missing, invalid or due", "written", strings.Join(written, ","))
		}
	}, checkEvery)
}
