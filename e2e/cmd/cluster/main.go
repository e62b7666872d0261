// Command cluster makes, shows and removes a real Kubernetes with the CloudNativePG operator on this machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/program"
)

const usage = `usage: cluster COMMAND
  up [-nodes 1|2] [-proxy-mode iptables|nftables] [-ip-family ipv4|dual] [VERSIONS]
                                      make the cluster
  prepare [VERSIONS]                  build what a cluster is made of, and make none
  down                                remove it
  status                              show it; fails unless all of it runs
  kubeconfig                          print where its kubeconfig is
  postgres-image [MAJOR [OLDER]]      print the name of its PostgreSQL image; with MAJOR make and load that of 15, 17 or 18, with
                                      OLDER one to which a cluster of that major version can be upgraded
  drivers-image                       make an image of clients in several languages, load it, and print its name
  cert-manager-image                  make an image of cert-manager's programs, load it, and print its name
  cert-manager-chart                  print where the Helm chart of cert-manager is
  kustomize-controller-image          make an image of Flux's kustomize-controller, load it, and print its name
  kustomize-controller-crd            print where the definition of Flux's Kustomization is
  load ARCHIVE...                     import archives of images
  tag IMAGE OTHER                     give an image another name
  exec COMMAND [ARGUMENT...]          run a command in its network, with its KUBECONFIG
  audit [NETWORK...]                  compare the rights of the project's accounts with what they asked for since up, here and in
                                      the clusters of other networks
  traces DIRECTORY [NETWORK...]       write what happened to every Cluster since up, a file for each, for sidecar/sleep to replay
  kubectl [--] ARGUMENT...            run kubectl as its administrator
  postgres-files MAJOR...             make the files of PostgreSQL and print where they are, as MAJOR=DIRECTORY:...
  prometheus, promtool                get Prometheus and its tool that tests rules, and print where it is
  alertmanager                        get Alertmanager, and print where it is
  kubernetes                          build the program that is every component of the usual release, and etcd, and print where it is
VERSIONS are -kubernetes and -operator with a release, and -postgres with a major version.
SCALE_TO_ZERO_CACHE and SCALE_TO_ZERO_RUN name the folders of what is built and of what runs. Every cluster has
a network namespace; SCALE_TO_ZERO_NETWORK is the name of one for another cluster, beside others.
`

func main() {
	program.Run("cluster", func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

func run(ctx context.Context, arguments []string) error {
	layout, err := cluster.DefaultLayout(".")
	if err != nil {
		return err
	}
	if len(arguments) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	if slices.Contains([]string{"down", "audit", "kubectl", "exec"}, arguments[0]) { // what asks the API server, or is to be where it is
		if err := layout.Enter(); err != nil {
			return err
		}
	}
	progress := cluster.NewProgress(os.Stderr)
	switch command, rest := arguments[0], arguments[1:]; command {
	case "up":
		var options cluster.Options
		flags := versionFlags(command, &options.Versions)
		flags.StringVar(&options.ProxyMode, "proxy-mode", "iptables", "iptables or nftables")
		families := flags.String("ip-family", string(cluster.IPv4), "ipv4, or dual: IPv4 and IPv6")
		flags.IntVar(&options.Nodes, "nodes", 1, "1, or 2: the second one in another network namespace")
		if err := flags.Parse(rest); err != nil {
			return fmt.Errorf("read the flags: %w", err)
		}
		options.Families = cluster.Families(*families)
		return layout.Up(ctx, progress, options)
	case "prepare":
		var versions cluster.Versions
		if err := versionFlags(command, &versions).Parse(rest); err != nil {
			return fmt.Errorf("read the flags: %w", err)
		}
		return layout.Prepare(ctx, progress, versions)
	case "down":
		return layout.Down(ctx, progress)
	case "status":
		report, err := layout.Status()
		fmt.Print(report)
		return err
	case "kubeconfig":
		return printed(layout.Kubeconfig(), nil)
	case "postgres-image":
		if len(rest) > 0 {
			return loaded(ctx, layout)(layout.PostgresImage(ctx, progress, rest[0], rest[1:]...))
		}
		return printed(layout.OperandImage())
	case "drivers-image":
		return loaded(ctx, layout)(layout.DriversImage(ctx, progress))
	case "cert-manager-image":
		return loaded(ctx, layout)(layout.CertManagerImage(ctx, progress))
	case "cert-manager-chart":
		return printed(layout.CertManagerChart(ctx))
	case "kustomize-controller-image":
		return loaded(ctx, layout)(layout.KustomizeControllerImage(ctx, progress))
	case "kustomize-controller-crd":
		return printed(layout.KustomizeControllerCRD(ctx))
	case "load":
		return layout.Load(ctx, rest...)
	case "tag":
		if len(rest) != 2 {
			return fmt.Errorf("tag takes two names\n%s", usage)
		}
		return layout.Tag(ctx, rest[0], rest[1])
	case "audit":
		report, err := layout.Audit(ctx, rest...)
		fmt.Print(report)
		return err
	case "traces":
		if len(rest) == 0 {
			return fmt.Errorf("traces takes a directory\n%s", usage)
		}
		report, err := layout.Traces(rest[0], rest[1:]...)
		fmt.Print(report)
		return err
	case "kubectl":
		if len(rest) > 0 && rest[0] == "--" {
			rest = rest[1:]
		}
		return layout.BecomeKubectl(rest)
	case "exec":
		if len(rest) == 0 {
			return fmt.Errorf("exec takes a command\n%s", usage)
		}
		return layout.Become(rest[0], rest[1:]...)
	case "prometheus", "promtool":
		directory, err := layout.Prometheus(ctx, progress)
		return printed(filepath.Join(directory, command), err)
	case "alertmanager":
		return printed(layout.Alertmanager(ctx, progress))
	case "kubernetes":
		return printed(layout.Kubernetes(ctx, progress))
	case "postgres-files":
		return postgresFiles(ctx, layout, progress, rest)
	default:
		return fmt.Errorf("there is no command %q\n%s", command, usage)
	}
}

// versionFlags are the flags of a command that choose versions.
func versionFlags(command string, versions *cluster.Versions) *flag.FlagSet {
	flags, usual := flag.NewFlagSet(command, flag.ContinueOnError), cluster.Usual()
	flags.StringVar(&versions.Kubernetes, "kubernetes", usual.Kubernetes, "release of Kubernetes")
	flags.StringVar(&versions.Operator, "operator", usual.Operator, "release of CloudNativePG")
	flags.StringVar(&versions.Postgres, "postgres", usual.Postgres, "major version of PostgreSQL")
	return flags
}

// printed prints a line, unless there is an error.
func printed(line string, err error) error {
	if err == nil {
		fmt.Println(line)
	}
	return err
}

// loaded loads an image that has been made into the cluster, and prints its name.
func loaded(ctx context.Context, layout cluster.Layout) func(archive, name string, err error) error {
	return func(archive, name string, err error) error {
		if err != nil {
			return err
		}
		return printed(name, layout.Load(ctx, archive))
	}
}

func postgresFiles(ctx context.Context, layout cluster.Layout, progress *cluster.Progress, majors []string) error {
	list := ""
	for _, major := range majors {
		directory, err := layout.PostgresFiles(ctx, progress, major)
		if err != nil {
			return err
		}
		list += ":" + major + "=" + directory
	}
	return printed(strings.TrimPrefix(list, ":"), nil)
}
