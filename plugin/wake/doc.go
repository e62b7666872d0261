// Package wake leads the clients of sleeping clusters to the gateway: it runs on every replica of the plugin, each for
// itself, and each with its own EndpointSlices.
//
// Of each cluster it makes a plan (package plan) and carries it out: a port for each Service (package ports), a listener on
// it, EndpointSlices that lead there (package slices), and for an announcement the proof that they do and the
// acknowledgement. What is taken away goes in the other order: first the slices, and a moment later the listener, since
// other nodes' kube-proxies hear of it later. Between clients and PostgreSQL is nothing of ours while a cluster is awake.
//
// Replicas do not elect a leader. What they share is written only on the state that was read: the ports, the
// acknowledgement, the switch. The slices of a replica that has gone are removed by those that are left,
// which go by what the kubelet says of its pod and by whether it answers them.
package wake
