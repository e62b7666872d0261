// Package command is kubectl-scale_to_zero: it shows which clusters sleep and what keeps the others awake, puts
// clusters to sleep, wakes them and keeps them awake.
//
// It uses its user's permissions: to read Clusters, Pods and ScheduledBackups, to query the sidecars through the API
// server (pods/proxy), to patch Clusters and, for doctor, to read more. To put a cluster to sleep it does not turn
// hibernation on: it asks the sidecar, which makes its usual checks and handover.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// Name is the program that kubectl runs for `kubectl scale_to_zero`.
const Name = "kubectl-scale_to_zero"

// fieldManager is the field manager of changes by this program. Its name must not begin with kubectl: on objects
// applied by Flux, each reconciliation removes the fields of such managers unless Git has them (kustomize-controller
// 1.7.3, internal/controller/kustomization_controller.go; github.com/fluxcd/pkg/ssa 0.61.0, patch.go).
const fieldManager = "cnpg-i-scale-to-zero-cli"

// called is the command as typed by users.
const called = "kubectl scale_to_zero"

// Exit codes.
const (
	exitDone = iota
	exitFailed
	exitUsage
	exitNotReached // there was no error, but the cluster did not reach the requested state
	exitFound      // doctor has found something wrong
)

// errInterrupted takes the place of the error of a context that an interrupt has cancelled.
var errInterrupted = errors.New("interrupted")

// failure is an error with an exit code of its own.
type failure struct {
	code int
	text string
}

func (f failure) Error() string { return f.text }

func usage(format string, arguments ...any) error {
	return failure{exitUsage, fmt.Sprintf(format, arguments...)}
}

func notReached(format string, arguments ...any) error {
	return failure{exitNotReached, fmt.Sprintf(format, arguments...)}
}

// Streams are the program's outputs and environment.
type Streams struct {
	Out, Err io.Writer
	Getenv   func(string) string
}

type program struct {
	Streams
	version string
	connect func() (*access, error)
	// output is the value of --output, printer its printer; nil means text.
	output  string
	printer printers.ResourcePrinter
}

// Run runs the command line of the program of that version, and returns the exit code.
func Run(ctx context.Context, arguments []string, streams Streams, version string) int {
	flags := genericclioptions.NewConfigFlags(true)
	flags.CacheDir = nil // there is no discovery
	p := &program{Streams: streams, version: version, connect: func() (*access, error) { return connect(flags, streams.Getenv) }}
	return p.run(ctx, arguments, flags)
}

func (p *program) run(ctx context.Context, arguments []string, flags *genericclioptions.ConfigFlags) int {
	root := p.root() //nolint:contextcheck // cobra hands the context to the command that runs
	flags.AddFlags(root.PersistentFlags())
	root.SetArgs(arguments)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	text := printable(err.Error())
	if errors.Is(err, context.Canceled) {
		text = errInterrupted.Error()
	}
	_, _ = fmt.Fprintln(p.Err, Name+":", text)
	known := failure{code: exitFailed}
	errors.As(err, &known)
	return known.code
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   Name,
		Short: "Show which CloudNativePG clusters sleep, and put them to sleep, wake them and keep them awake",
		Long: `Show which CloudNativePG clusters sleep, and put them to sleep, wake them and keep them awake.

Exit codes: 0 success, 1 error, 2 usage error, 3 the cluster did not reach the requested state, 4 doctor has found something
wrong.`,
		Version:       p.version,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: called},
		SilenceErrors: true, SilenceUsage: true,
		Args: func(c *cobra.Command, arguments []string) error {
			if len(arguments) == 0 {
				return nil
			}
			var known []string
			for _, child := range c.Commands() {
				if child.IsAvailableCommand() {
					known = append(known, child.Name())
				}
			}
			return usage("there is no command %q; known are %s", arguments[0], strings.Join(known, ", "))
		},
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return p.chooseOutput(c) },
	}
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVarP(&p.output, "output", "o", "", "output format: json, yaml, kyaml, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE or jsonpath-file=FILE; status also supports name and wide; report also supports html; empty for text")
	_ = root.RegisterFlagCompletionFunc("output", completeOutput) // fails only for a flag that does not exist
	root.AddCommand(p.statusCommand(), p.explainCommand(), p.sleepCommand(), p.wakeCommand(), p.keepAwakeCommand(),
		p.releaseCommand(), p.reportCommand(), p.doctorCommand())
	for _, e := range enrolments {
		root.AddCommand(p.enrolmentCommand(e))
	}
	return root
}

// exactly requires one argument for every name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, arguments []string) error {
		if len(arguments) == len(names) {
			return nil
		}
		return usage("%s takes %s, not %d arguments", c.Name(), strings.Join(names, " and "), len(arguments))
	}
}

// say prints progress to stderr; it is not part of the output.
func (p *program) say(format string, arguments ...any) {
	_, _ = fmt.Fprintln(p.Err, printable(fmt.Sprintf(format, arguments...)))
}

// complete completes the first argument with the names of the clusters that the command can be about.
func (p *program) complete(which choice) cobra.CompletionFunc {
	return func(c *cobra.Command, arguments []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		if len(arguments) != 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		a, err := p.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(c.Context(), askWithin)
		defer cancel()
		clusters, err := a.clusters(ctx, which)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for i := range clusters {
			names = append(names, clusters[i].Name)
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// flagError names the flag, its value and what is allowed.
func flagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		switch flag.Value.Type() {
		case "duration":
			return usage(`--%s is %q; it must be a duration such as "90s" or "5m"`, flag.Name, invalid.GetValue())
		case "bool":
			return usage(`--%s is %q; it must be "true" or "false"`, flag.Name, invalid.GetValue())
		}
	}
	return usage("%v; %s --help lists what is allowed", err, strings.Replace(c.CommandPath(), Name, called, 1))
}
