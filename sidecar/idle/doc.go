// Package idle decides when a PostgreSQL cluster may be put to sleep.
//
// It is pure: [Decide] takes the policy, the previous state, one sample of the instance and its Cluster, and the time,
// and returns the new state and what to do. It reads no clock and does no I/O, so that every behaviour can be written
// down as a transcript (testdata) and compared with a naive oracle (the fuzz test).
//
// # What counts
//
// The guarantee is that unknown is never idle. The idle clock starts at the end of the first sample that found nothing
// active, and proves idleness only up to the beginning of the newest such sample: a session that vanished between two
// samples is assumed to have ended at the later one, and one that began after a sample's beginning may not be known
// yet. Anything but a proof of idleness, including a failed sample, stops the clock.
//
// # Who is authoritative
//
// The Cluster object says whether the feature is on, which instance is primary and whether sleep is permitted; the
// instance says whether a client uses it. Both must agree at the same sample. The clock of the decision restarts when
// this instance becomes the primary, when a replica cluster is promoted, when the feature is turned on, and when a
// requested hibernation is withdrawn.
//
// # Unused wakes
//
// A cluster that was woken, but not by a person or a request, sleeps again after a minute if, on every instance that
// has served since, no sample has found a session and no event has reported one. Only a sidecar that has run since the
// wake can prove that. If the cluster was used, the threshold applies. The threshold also applies if the cluster may
// have been used: after lost events, two minutes without a successful sample, a restart of the sidecar, a change of the
// primary or the replacement of a pod, or if the server had run for more than a minute before the first sample. While a
// session that the gateway has announced has not been judged, nothing is proven. A sample that fails restarts the
// minute only, because the kernel reports sessions meanwhile. PostgreSQL's start and the resuming of schedules come
// first, because nothing is decided before the Cluster is healthy and its schedules are resumed.
//
// # Failures
//
//   - A failed sample stops the clock: sleep is delayed by at least a whole threshold.
//   - If the Cluster cannot be read, nothing new is forbidden, but no decision is carried out without reading it again.
//   - An invalid annotation turns the feature off; it is not replaced by a default.
//   - If the machine's clock is set back, the wait becomes longer, never shorter.
package idle
