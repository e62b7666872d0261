// Package wake routes the clients of sleeping clusters to the gateway. It runs independently on every replica of the
// plugin, each with its own EndpointSlices.
//
// For each cluster it makes a plan (package plan) and carries it out: a port for each Service (package ports), a
// listener on it, EndpointSlices that lead there (package endpointslice), and for an announcement the proof that they
// do, and the acknowledgement. For that of a doze a second one follows, once no Service leads past the gateway. Removal
// is in the reverse order: first the slices, and a moment later the listener, because the kube-proxies of other nodes
// learn of it later. New connections to a cluster that is awake do not pass through any of this; sessions that were
// held do until they end.
//
// Replicas do not elect a leader. Shared state (ports, acknowledgement, hibernation) is only written with optimistic
// locking. The slices of a replica that is gone, not ready or no longer answers are removed by the remaining ones.
package wake
