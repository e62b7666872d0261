package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

const (
	namespace = "cnpg-system"
	account   = "system:serviceaccount:cnpg-system:cnpg-scale-to-zero-plugin"
)

// policy logs every request of the plugin except its watches.
const policy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
	{"level": "None", "verbs": ["watch"]}, {"level": "Metadata", "users": ["` + account + `"]}, {"level": "None"}]}`

// server is an API server with its etcd.
type server struct {
	environment *envtest.Environment
	admin       client.WithWatch
	// configuration is the administrator's, kubeconfig the file of the plugin's, audit what the plugin asked for.
	configuration     *rest.Config
	kubeconfig, audit string
	folder            string
}

// startServer starts them, with the operator's CRDs.
func startServer(p programs, folder string) (s *server, err error) {
	s = &server{folder: folder, audit: filepath.Join(folder, "audit.log"), kubeconfig: filepath.Join(folder, "kubeconfig")}
	written := filepath.Join(folder, "audit-policy.yaml")
	if err := os.WriteFile(written, []byte(policy), 0o600); err != nil {
		return nil, fmt.Errorf("write the audit policy: %w", err)
	}
	etcd, err := part(folder, p.kubernetes, "etcd")
	if err != nil {
		return nil, err
	}
	apiserver, err := part(folder, p.kubernetes, "kube-apiserver")
	if err != nil {
		return nil, err
	}
	s.environment = &envtest.Environment{CRDDirectoryPaths: []string{
		filepath.Join(p.definitions, "postgresql.cnpg.io_clusters.yaml"), filepath.Join(p.definitions, "postgresql.cnpg.io_scheduledbackups.yaml"),
	}, ErrorIfCRDPathMissing: true}
	log, err := os.Create(filepath.Join(folder, "apiserver.log"))
	if err != nil {
		return nil, fmt.Errorf("make the API server's log: %w", err)
	}
	s.environment.ControlPlane.Etcd = &envtest.Etcd{Path: etcd}
	s.environment.ControlPlane.Etcd.Configure().Set("quota-backend-bytes", "8589934592")
	s.environment.ControlPlane.APIServer = &envtest.APIServer{Path: apiserver, Out: log, Err: log}
	s.environment.ControlPlane.APIServer.Configure().
		Set("advertise-address", "192.0.2.1").Set("service-cluster-ip-range", "10.128.0.0/12").Set("audit-policy-file", written).Set("audit-log-path", s.audit)
	if s.configuration, err = s.environment.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server: %w", err), s.stop())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	s.configuration.QPS = -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	if s.admin, err = client.NewWithWatch(s.configuration, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	user, err := s.environment.AddUser(envtest.User{Name: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}}, nil)
	if err != nil {
		return nil, fmt.Errorf("make the plugin's account: %w", err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return nil, fmt.Errorf("make the plugin's kubeconfig: %w", err)
	}
	if err := os.WriteFile(s.kubeconfig, kubeconfig, 0o600); err != nil {
		return nil, fmt.Errorf("write the plugin's kubeconfig: %w", err)
	}
	return s, nil
}

func (s *server) stop() error {
	if err := s.environment.Stop(); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	return nil
}

// part writes a script that is one program of many.
func part(folder, program, name string) (string, error) {
	path := filepath.Join(folder, name)
	script := fmt.Sprintf("#!/bin/sh\nexec %q %s \"$@\"\n", program, name)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		return "", fmt.Errorf("write the script of %s: %w", name, err)
	}
	return path, nil
}

// grant applies the rights that are shipped, and the policies that limit them.
func (s *server) grant(ctx context.Context) error {
	if err := s.admin.Create(ctx, &corev1.Namespace{ObjectMeta: named("", namespace)}); err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	files := []string{"../manifests/base/rights/rights.yaml", "../manifests/base/account.yaml"}
	for _, component := range []string{"instances", "plugin"} {
		policies, err := filepath.Glob("../manifests/components/policies/" + component + "/[^k]*.yaml") // without the kustomization
		if err != nil || len(policies) == 0 {
			return fmt.Errorf("find the policies of the %s: %w", component, cmp.Or(err, fs.ErrNotExist))
		}
		files = append(files, policies...)
	}
	for _, file := range files {
		shipped, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the rights that are shipped: %w", err)
		}
		if err := s.create(ctx, shipped); err != nil {
			return err
		}
	}
	return nil
}

// create makes what a manifest has.
func (s *server) create(ctx context.Context, manifest []byte) error {
	for document := range bytes.SplitSeq(manifest, []byte("\n---\n")) {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return fmt.Errorf("read the rights that are shipped: %w", err)
		}
		if kind := object.GetKind(); !strings.HasPrefix(kind, "Cluster") && !strings.HasPrefix(kind, "Validating") {
			object.SetNamespace(namespace)
		}
		if subjects, has, _ := unstructured.NestedSlice(object.Object, "subjects"); has {
			for _, subject := range subjects {
				if fields, is := subject.(map[string]any); is {
					fields["namespace"] = namespace
				}
			}
			object.Object["subjects"] = subjects
		}
		if err := s.admin.Create(ctx, &object); err != nil {
			return fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}
