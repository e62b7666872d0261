package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"

	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// drainSocket is in a volume of the container's own.
const drainSocket = "/scale-to-zero/drain.sock"

// evidenceFile is in the same volume, which outlives the container.
const evidenceFile = "/scale-to-zero/evidence.json"

// settings is what the environment says. The plugin writes it into the pod.
type settings struct {
	identity kubernetes.Identity
	server   postgres.Server
	address  string
	port     uint16 // of the address; that of the other instances is the same
	level    slog.Level
	farewell string // the file that tells PostgreSQL's preStop hook; empty: none
}

// readSettings reads the environment and names every bad variable at once, its value and what is allowed.
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
			Namespace: required("NAMESPACE"), Cluster: required("CLUSTER_NAME"), Pod: required("POD_NAME"), PodUID: required("POD_UID"),
			Group: optional("CUSTOM_CNPG_GROUP", "postgresql.cnpg.io"), Version: optional("CUSTOM_CNPG_VERSION", "v1"),
		},
		server:  postgres.Server{SocketDirectory: required("PGHOST")},
		address: optional("METRICS_ADDRESS", ":9189"), farewell: lookup("FAREWELL_FILE"),
	}
	if s.farewell != "" && !filepath.IsAbs(s.farewell) {
		bad("FAREWELL_FILE", "it must be an absolute path")
	}
	if s.server.SocketDirectory != "" && !filepath.IsAbs(s.server.SocketDirectory) {
		bad("PGHOST", "it must be the absolute path of the directory of PostgreSQL's socket")
	}
	port, err := strconv.ParseUint(optional("PGPORT", "5432"), 10, 16)
	if err != nil || port == 0 {
		bad("PGPORT", "it must be a port, 1 to 65535")
	}
	s.server.Port = uint16(port)
	if _, text, err := net.SplitHostPort(s.address); err != nil {
		bad("METRICS_ADDRESS", `it must be an address and a port, such as ":9189"`)
	} else if port, err := strconv.ParseUint(text, 10, 16); err == nil && port != 0 {
		s.port = uint16(port)
	} else {
		bad("METRICS_ADDRESS", `it must be an address and a port, such as ":9189"`)
	}
	if err := s.level.UnmarshalText([]byte(optional("LOG_LEVEL", "info"))); err != nil {
		bad("LOG_LEVEL", "allowed are debug, info, warn and error")
	}
	return s, errors.Join(problems...)
}
