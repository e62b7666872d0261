// Package cluster makes a real Kubernetes of one node, or two, with the real CloudNativePG operator on a Debian machine, as root,
// without a container registry and without Docker: etcd to kube-proxy from Go modules, containerd and CNI from Debian,
// PostgreSQL from Debian's packages. What is built is kept in a cache outside the repository; what runs is in a run folder,
// which Down removes.
package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Addresses and names of the cluster; ranges are in ipv4 and ipv6. Each cluster has a network namespace, out of which nothing leads.
const (
	nodeName    = "node"
	nodeAddress = "10.99.0.1"
	apiService  = "10.96.0.1"
	dnsService  = "10.96.0.10"
	nodeBridge  = "s2z0"
	podBridge   = "s2zpods"
	provisioner = "scale-to-zero.e2e/directory"
)

// Layout says where everything is.
type Layout struct {
	// Source is the e2e module, Cache what is built and downloaded, Run what one running cluster consists of.
	Source, Cache, Run string
	// Network is what the names of the cluster's network namespace and of its other things end with, so that there can be others
	// beside it, with the same addresses. It may be empty.
	Network string
}

// networks are the names that a network may have: a control group, a lock and a folder have it in theirs.
var networks = regexp.MustCompile(`^[a-z]{0,10}$`)

// DefaultLayout takes SCALE_TO_ZERO_CACHE, or a folder in the user's cache directory, SCALE_TO_ZERO_RUN, or a folder in
// the cache, and SCALE_TO_ZERO_NETWORK, whose name the run folder gets at its end.
func DefaultLayout(source string) (Layout, error) {
	l := Layout{
		Source: source, Cache: os.Getenv("SCALE_TO_ZERO_CACHE"), Run: os.Getenv("SCALE_TO_ZERO_RUN"), Network: os.Getenv("SCALE_TO_ZERO_NETWORK"),
	}
	if !networks.MatchString(l.Network) {
		return Layout{}, fmt.Errorf("SCALE_TO_ZERO_NETWORK is %q: it must be at most ten lower-case letters", l.Network)
	}
	if l.Cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return Layout{}, fmt.Errorf("find the cache directory (or set SCALE_TO_ZERO_CACHE): %w", err)
		}
		l.Cache = filepath.Join(user, "cnpg-i-scale-to-zero")
	}
	if l.Run == "" {
		l.Run = filepath.Join(l.Cache, "run")
	}
	l.Run += l.Network
	for _, path := range []*string{&l.Source, &l.Cache, &l.Run} { // processes of other directories are given these paths
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return Layout{}, fmt.Errorf("find %s: %w", *path, err)
		}
		*path = absolute
	}
	return l, nil
}

// Kubeconfig is the administrator's.
func (l Layout) Kubeconfig() string { return filepath.Join(l.Run, "kubeconfig") }

// Logs is the folder of the components' and the pods' logs, which is kept until the next cluster.
func (l Layout) Logs() string { return l.Run + "-logs" }

// beside is the layout of the cluster in another network of the machine.
func (l Layout) beside(network string) Layout {
	l.Run, l.Network = strings.TrimSuffix(l.Run, l.Network)+network, network
	return l
}

// own is the name of what is one for the machine, such as a control group or CNI's records of a network.
func (l Layout) own() string { return "s2z" + l.Network }

func (l Layout) run(elements ...string) string {
	return filepath.Join(append([]string{l.Run}, elements...)...)
}

func (l Layout) kubernetes() string { return l.run("bin", "kubernetes") }

func (l Layout) socket() string { return l.run("containerd.sock") }

// keyed is the path of a cached file whose name shows what it was made from: the content of files and further settings.
func (l Layout) keyed(name string, sources []string, settings ...string) (string, error) {
	digest := sha256.New()
	for _, source := range sources {
		content, err := os.ReadFile(source)
		if err != nil {
			return "", fmt.Errorf("read what %s is made from: %w", name, err)
		}
		digest.Write(content)
	}
	for _, setting := range settings {
		digest.Write([]byte(setting))
	}
	return filepath.Join(l.Cache, name+"-"+hex.EncodeToString(digest.Sum(nil))[:12]), nil
}
