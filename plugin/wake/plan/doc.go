// Package plan decides what the plugin does about a cluster: which of its Services lead to the gateway, what is written
// to the Cluster, which pods are deleted, and which Events tell people. It reads no clock and does no input or output:
// [Decide] makes of what is seen and remembered a [Plan], and what is to be remembered next.
//
// # Which Services lead to the gateway
//
// They do while an instance announces that it is about to put the cluster to sleep, while the cluster sleeps because
// this project put it to sleep, and after a wake until the Service has a ready endpoint of its own: a Service that
// clients use must never be without any. In every other case nothing of ours is between a client and PostgreSQL.
//
// In a cluster that dozes, PostgreSQL is stopped and its pod is kept. Its Services lead to the gateway whatever the
// annotations say, and even if the plugin is not listed, because nothing else could serve its clients. Before
// PostgreSQL is stopped, the plugin confirms the announcement a second time, once no Service leads to an instance
// directly.
//
// # What it guarantees
//
//   - A change is written with the version of the Cluster that it was decided on, or not at all.
//   - What the plugin has not seen itself, such as a stop that the sidecar has not recorded, is proven by an inspection
//     of the pods first: [Plan.List] and [Plan.Dial] ask for it.
//   - Every replica decides the same, apart from what it remembers, and each remembers only what makes it wait longer.
//
// Start reading at [Decide] and, for the Services, at routing.routes.
package plan
