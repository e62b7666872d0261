// Package process has what the processes of the sidecar's container share: they pause between two tries, give back
// memory that they do not use, talk over Unix sockets, and agree on whether the pod is ready. It imports as little as
// possible, because the supervisor runs in every PostgreSQL pod.
//
// # Readiness
//
// The worker takes the pod out of its Services without stopping anything: the kubelet's readiness probe of the
// sidecar's container connects to a TCP port, and the pod is not ready while that port is closed.
//
// The supervisor owns the port. The worker may take a lease, during which the port is closed. The lease ends
// [leaseDuration] after the worker's last request, even if the worker has ended, so that
//
//   - a worker that dies and is started again may take the lease over before the port opens, and
//   - a worker that hangs lets the port open.
//
// A supervisor that starts leases the port for the worker: the container may have been restarted during a doze, and for
// half a minute after its stop the kubelet still takes PostgreSQL for ready. The worker restores the port once it knows
// that the cluster does not doze. As long as it does not know the Cluster, it keeps the lease only while PostgreSQL is
// known not to serve.
//
// The requests are single bytes on a Unix socket: [withdraw] takes or renews the lease, [restore] ends it. Each is
// answered by a line once the port is closed or open. A connection that the supervisor closes tells the worker that the
// lease had ended.
package process
