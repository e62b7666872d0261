// Package cnpgi implements CNPG-I, the operator's plugin interface: the identity service, the lifecycle hook for pods,
// and the reconciler hooks.
//
// # What it guarantees
//
//   - An error or a late answer would keep the operator from making a pod or from failing over. Its calls therefore
//     need no request to the API server, apart from those for a Backup, and no call of the lifecycle hook returns an
//     error, unless it panics.
//   - Other clients cannot lock the operator out: unauthenticated connections are limited, and the oldest are closed.
//   - A replica that stops asks the operator to reconnect, which routes it to another replica. Running calls finish.
//
// # The lifecycle hook
//
// It injects the sidecar into the pods of a cluster that lists the plugin. The operator calls it twice. It calls
// EVALUATE when it plans a pod and whenever it checks for drift, and compares the answers with each other. EVALUATE
// therefore answers with a constant placeholder, unless the cluster's running instances are to get a new sidecar at
// once: then it answers with the real one. The operator calls CREATE when it creates a pod. CREATE replaces either form
// by the real sidecar, shortens the periods of the startup probes that a wake waits for, and prepares a pod that may
// doze; this rolls no running cluster. The requests of what it adds fit the LimitRanges of the namespace; where none
// can, both calls leave the pod as it is.
//
// # The reconciler hooks
//
// The reconciliation of a Cluster includes failover, so the hook answers at once, and lets it continue unless the
// cluster dozes; the plugin's own work is queued. The hook of a Backup may delay it until a dozing cluster is awake.
//
// # The certificates
//
// For installations without cert-manager, [EnsureCertificates] creates and renews the two Secrets for mutual TLS
// between the operator and the plugin. Each side trusts what is in the other's tls.crt. The operator sees a renewed
// Secret at once, the plugin's pods when the kubelet updates their files, a minute or so later. So that no call is
// refused in between, each Secret has its own small CA, which outlives many renewals and follows the certificate in
// tls.crt: a side with the previous file already trusts the next certificate, and a side with the next file still
// trusts the previous one.
//
// Start reading at [Lifecycle.LifecycleHook] and [Hooks.Pre]; [Server] carries both.
package cnpgi
