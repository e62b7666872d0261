// Package cnpgi serves the operator by its plugin interface, CNPG-I: who the plugin is, what becomes of a pod, and
// whether a reconciliation continues.
//
// # What it guarantees
//
//   - An error or a late answer would keep the operator from making a pod or from failing over. Its calls therefore
//     need no request to the API server, apart from those for a Backup, and no call of the lifecycle hook returns an
//     error, unless it panics.
//   - Other clients cannot lock the operator out: connections that have not authenticated are few, and lose their place.
//   - While a replica leaves, the operator is led to another one. Calls that run are finished.
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
// That of a Cluster also does failover, so the answer comes immediately, and is to continue unless the cluster dozes;
// our own work is queued. That of a Backup may wait for a cluster that dozes.
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
