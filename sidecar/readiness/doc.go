// Package readiness takes a pod out of its Services without stopping anything: the kubelet's readiness probe of the sidecar's
// container connects to a TCP port, and the pod is not ready while that port is closed.
//
// The supervisor owns the port, and it is open by default. The worker may lease it closed. The lease ends [leaseDuration] after
// the worker's last request, however the worker ended, so that
//
//   - a worker that dies and is started again may take the lease over before the port opens,
//   - a worker that hangs lets the port open, and
//   - a supervisor that starts again opens the port, until a worker leases it.
//
// The requests are single bytes on a Unix socket: [withdraw] takes or renews the lease, [restore] ends it. Each is answered by a
// line once the port is really closed or open. A connection that the supervisor closes tells the worker that the lease had ended.
package readiness

import "time"

const (
	// leaseDuration is how long the port stays closed after the last request.
	leaseDuration = 5 * time.Second
	// renewEvery is how often the worker renews its lease.
	renewEvery = time.Second
	// answerTimeout is how long the worker waits for an answer. It leaves time for another try before the lease ends.
	answerTimeout = 2 * time.Second
	// openAgain is how long the supervisor waits before it tries again to open a socket.
	openAgain = time.Second
)

// The requests and their answers.
const (
	withdraw byte = 'w'
	restore  byte = 'r'

	withdrawn = "closed\n"
	restored  = "open\n"
)
