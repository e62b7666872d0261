// Package apiservertest starts an API server with its own etcd for a test, using the program that the end-to-end tests
// build.
package apiservertest

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cnpg-i/scale-to-zero/internal/porttest"
)

// patience bounds every wait for the API server; a passing test never reaches it.
const patience = 3 * time.Minute

// Program returns the path in TEST_KUBERNETES, of a program that contains, among others, the API server and etcd.
// Without it the test is skipped, or fails if REQUIRE_KUBERNETES is set.
func Program(t testing.TB) string {
	t.Helper()
	path := os.Getenv("TEST_KUBERNETES")
	if path == "" {
		if os.Getenv("REQUIRE_KUBERNETES") != "" {
			t.Fatal("TEST_KUBERNETES is not set, and REQUIRE_KUBERNETES says that this test must run")
		}
		t.Skip("TEST_KUBERNETES is not set (make unit sets it)")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("TEST_KUBERNETES: %v", err)
	}
	return path
}

// attempts is how often the API server is started: envtest gives the default namespace five seconds to come, which is
// too little on a machine that is busy enough.
const attempts = 3

// Start starts an API server with the operator's CRDs of these plural names. It ends with the test.
func Start(t testing.TB, plurals ...string) *rest.Config {
	t.Helper()
	return StartWith(t, nil, plurals...)
}

// StartWith is Start for an API server with further arguments.
func StartWith(t testing.TB, arguments map[string]string, plurals ...string) *rest.Config {
	t.Helper()
	program := Program(t)
	for attempt := 1; ; attempt++ {
		environment := environmentOf(t, program, plurals)
		for name, value := range arguments {
			environment.ControlPlane.APIServer.Configure().Set(name, value)
		}
		config, err := environment.Start()
		if err == nil {
			t.Cleanup(func() {
				if err := environment.Stop(); err != nil {
					t.Error(err)
				}
			})
			return config
		}
		_ = environment.Stop() // the reason is the error of the start
		if attempt == attempts {
			t.Fatal(err)
		}
		t.Logf("the API server is started again: %v", err)
	}
}

// environmentOf is an API server that is not started yet. No other test gets its ports.
func environmentOf(t testing.TB, program string, plurals []string) *envtest.Environment {
	t.Helper()
	part := func(name string) string {
		path := filepath.Join(t.TempDir(), name)
		script := fmt.Sprintf("#!/bin/sh\nexec %q %s \"$@\"\n", program, name)
		if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	environment := &envtest.Environment{CRDInstallOptions: definitions(t, plurals), ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience}
	etcd := &envtest.Etcd{Path: part("etcd"), URL: &url.URL{Scheme: "http", Host: porttest.Address(t)}}
	etcd.Configure().Set("listen-peer-urls", "http://"+porttest.Address(t))
	environment.ControlPlane.Etcd = etcd
	secure := envtest.SecureServing{ListenAddr: envtest.ListenAddr{Address: "127.0.0.1", Port: strconv.Itoa(int(porttest.Reserve(t)))}}
	environment.ControlPlane.APIServer = &envtest.APIServer{Path: part("kube-apiserver"), SecureServing: secure}
	return environment
}

// Define adds the operator's CRDs of these plural names.
func Define(t testing.TB, config *rest.Config, plurals ...string) {
	t.Helper()
	if _, err := envtest.InstallCRDs(config, definitions(t, plurals)); err != nil {
		t.Fatal(err)
	}
}

func definitions(t testing.TB, plurals []string) envtest.CRDInstallOptions {
	t.Helper()
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cloudnative-pg/cloudnative-pg").Output()
	if err != nil {
		t.Fatal(err)
	}
	options := envtest.CRDInstallOptions{ErrorIfPathMissing: true, MaxTime: patience}
	for _, plural := range plurals {
		options.Paths = append(options.Paths, filepath.Join(strings.TrimSpace(string(module)), "config", "crd", "bases", "postgresql.cnpg.io_"+plural+".yaml"))
	}
	return options
}
