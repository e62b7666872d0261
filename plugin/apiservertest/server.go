// Package apiservertest starts an API server for a test: the program that the end-to-end tests build, with its own etcd.
package apiservertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Program is the program that is an API server and etcd among others; TEST_KUBERNETES names it where it is not in the cache
// of the end-to-end tests. Without it the test is skipped.
func Program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("TEST_KUBERNETES"); path != "" {
		return path
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "cnpg-i-scale-to-zero", "kubernetes-*"))
	if err != nil || len(found) == 0 {
		t.Skip("the end-to-end tests have built no Kubernetes")
	}
	return found[len(found)-1]
}

// Start starts an API server with the operator's resources of those plural names. It ends with the test.
func Start(t *testing.T, plurals ...string) *rest.Config {
	t.Helper()
	program := Program(t)
	part := func(name string) string {
		path := filepath.Join(t.TempDir(), name)
		script := fmt.Sprintf("#!/bin/sh\nexec %q %s \"$@\"\n", program, name)
		if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cloudnative-pg/cloudnative-pg").Output()
	if err != nil {
		t.Fatal(err)
	}
	environment := &envtest.Environment{ErrorIfCRDPathMissing: true}
	for _, plural := range plurals {
		definition := filepath.Join(strings.TrimSpace(string(module)), "config", "crd", "bases", "postgresql.cnpg.io_"+plural+".yaml")
		environment.CRDDirectoryPaths = append(environment.CRDDirectoryPaths, definition)
	}
	environment.ControlPlane.Etcd = &envtest.Etcd{Path: part("etcd")}
	environment.ControlPlane.APIServer = &envtest.APIServer{Path: part("kube-apiserver")}
	config, err := environment.Start()
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return config
}
