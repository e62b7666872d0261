package main

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// drainSocket is in a volume private to the container.
const drainSocket = contract.SidecarDirectory + "/drain.sock"

// checkpointFile is in the same volume, which outlives the container.
const checkpointFile = contract.SidecarDirectory + "/checkpoint.json"

// countsFile is there, too.
const countsFile = contract.SidecarDirectory + "/what-if.json"

// readinessSocket is where the supervisor leases the readiness port, in the same volume.
const readinessSocket = contract.SidecarDirectory + "/readiness.sock"

// settings are read from the environment, which the plugin writes into the pod.
type settings struct {
	identity        kubernetes.Identity
	socketDirectory string
	databasePort    uint16
	level           slog.Level
	marker          marker
	readiness       bool              // the pod has the readiness probe with which it leaves its Services
	dozeMemory      resource.Quantity // PostgreSQL's memory request while the cluster dozes; zero if it stays
}

// readSettings reads the environment. Its error names every invalid variable, with the value and what is allowed.
func readSettings(lookup func(string) string) (settings, error) {
	var problems []error
	bad := func(name, allowed string) {
		problems = append(problems, fmt.Errorf("%s is %q: %s", name, lookup(name), allowed))
	}
	required := func(name string) string {
		if lookup(name) == "" {
			bad(name, "it must not be empty")
		}
		return lookup(name)
	}
	optional := func(name, otherwise string) string {
		if value := lookup(name); value != "" {
			return value
		}
		return otherwise
	}
	s := settings{
		identity: kubernetes.Identity{
			Namespace: required(contract.EnvNamespace), Cluster: required(contract.EnvCluster), Pod: required(contract.EnvPod),
			PodUID:  required(contract.EnvPodUID),
			Group:   optional(contract.EnvCNPGGroup, contract.DefaultCNPGGroup),
			Version: optional(contract.EnvCNPGVersion, contract.DefaultCNPGVersion),
		},
		socketDirectory: required(contract.EnvSocketDirectory),
		marker:          marker{path: lookup(contract.EnvPreStopMarker)},
		readiness:       lookup(contract.EnvReadinessPort) != "",
	}
	if s.marker.path != "" && !filepath.IsAbs(s.marker.path) {
		bad(contract.EnvPreStopMarker, "it must be an absolute path")
	}
	if s.socketDirectory != "" && !filepath.IsAbs(s.socketDirectory) {
		bad(contract.EnvSocketDirectory, "it must be the absolute path of the directory of PostgreSQL's socket")
	}
	port, err := strconv.ParseUint(optional(contract.EnvPostgresPort, strconv.Itoa(contract.PostgresPort)), 10, 16)
	if err != nil || port == 0 {
		bad(contract.EnvPostgresPort, "it must be a port, 1 to 65535")
	}
	s.databasePort = uint16(port)
	if value := lookup(contract.EnvDozeMemoryRequest); value != "" {
		if s.dozeMemory, err = resource.ParseQuantity(value); err != nil || s.dozeMemory.Sign() <= 0 {
			bad(contract.EnvDozeMemoryRequest, "it must be a positive quantity, such as 64Mi")
		}
	}
	if err := s.level.UnmarshalText([]byte(optional(contract.EnvLogLevel, "info"))); err != nil {
		bad(contract.EnvLogLevel, "it must be debug, info, warn or error")
	}
	return s, errors.Join(problems...)
}
