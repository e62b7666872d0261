package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/audit"
)

// ErrAudit says that the rights of the project's accounts differ from those that they use; the report shows where.
var ErrAudit = errors.New("the rights of the project's accounts are not those that they use")

// auditLog is written by the API server.
func (l Layout) auditLog() string { return filepath.Join(l.Logs(), "audit.log") }

// Another reports whether KUBECONFIG names a cluster that was not made here.
func (l Layout) Another() bool {
	named := os.Getenv("KUBECONFIG")
	return named != "" && named != l.Kubeconfig()
}

// Audit compares what the project's accounts have asked of the API server since Up, here and in the clusters of other networks,
// with what their roles permit, and returns a report. A cluster that was not made here has no log, and the report says that nothing was
// compared; for one that was, it is an error that there is none.
func (l Layout) Audit(ctx context.Context, networks ...string) (string, error) {
	if l.Another() {
		return "audit" + logUnknown, nil
	}
	var requests []audit.Request
	if err := l.readLogs(networks, func(log io.Reader) error {
		logged, err := audit.Read(log)
		requests = append(requests, logged...)
		return err
	}); err != nil {
		return "", err
	}
	plugin, err := l.rules(ctx, "clusterrole/"+audit.Plugin, "role/"+audit.Plugin)
	if err != nil {
		return "", err
	}
	certificates, err := l.rules(ctx, "role/"+audit.Certificates)
	if err != nil {
		return "", err
	}
	var report strings.Builder
	for _, account := range audit.Accounts(requests, plugin, certificates) {
		finding := audit.Compare(account, requests)
		report.WriteString(finding.Report(account.Spared))
		if !finding.OK() {
			err = ErrAudit
		}
	}
	return report.String(), err
}

// logUnknown is what a report says of a cluster that was not made here.
const logUnknown = ": left out: the cluster of KUBECONFIG was not made here, so its audit log cannot be found\n"

// readLogs has the audit logs of this cluster and of those of other networks read.
func (l Layout) readLogs(networks []string, read func(io.Reader) error) error {
	if err := l.exists(); err != nil {
		return err
	}
	for _, network := range append([]string{l.Network}, networks...) {
		log, err := os.Open(l.beside(network).auditLog())
		if err != nil {
			return fmt.Errorf("open the audit log: %w", err)
		}
		if err := errors.Join(read(log), log.Close()); err != nil {
			return fmt.Errorf("%s: %w", log.Name(), err)
		}
	}
	return nil
}

// rules are those of some roles together, as they are on the cluster.
func (l Layout) rules(ctx context.Context, roles ...string) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for _, name := range roles {
		out, err := l.Kubectl(ctx, "", "-n", audit.Namespace, "get", name, "-o", "json")
		if err != nil {
			return nil, err
		}
		var role struct {
			Rules []rbacv1.PolicyRule `json:"rules"`
		}
		if err := json.Unmarshal([]byte(out), &role); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		rules = append(rules, role.Rules...)
	}
	return rules, nil
}
