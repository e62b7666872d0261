// Package process has what the processes of the sidecar's container share: they pause between two tries, give back
// memory that they do not use, and talk over Unix sockets. It imports as little as possible, because the supervisor
// runs in every PostgreSQL pod.
package process
