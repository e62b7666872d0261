// Package wake routes the clients of sleeping clusters to the gateway. It runs independently on every replica of the
// plugin, each with its own EndpointSlices.
//
// For each cluster it makes a plan (package plan) and carries it out: it opens a port for each Service (package ports)
// and creates EndpointSlices that route there (package endpointslice). When a cluster announces a sleep, it verifies
// that clients arrive at the ports, and acknowledges the announcement. It confirms that of a doze a second time, once
// no Service bypasses the gateway. Removal is in the reverse order: first the slices, and a moment later the port,
// because the kube-proxies of other nodes learn of it later. New connections to a cluster that is awake do not pass
// through the gateway; sessions that were held do until they end.
//
// Replicas do not elect a leader. Shared state (ports, acknowledgement, hibernation) is only written with optimistic
// locking. The slices of a replica that is gone, not ready or no longer answers are removed by the remaining ones.
package wake
