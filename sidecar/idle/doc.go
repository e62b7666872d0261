// Package idle decides when a PostgreSQL cluster may be put to sleep.
//
// It is pure: [Decide] takes the policy, what was known before, one sample of the instance and its Cluster, and the time,
// and returns what is known now and what to do. It reads no clock and does no I/O, so that every behaviour can be written
// down as a transcript (testdata) and held against a naive oracle (the fuzz test).
//
// # What counts
//
// The guarantee is that unknown is never idle. The idle clock starts at the end of the first sample that found nothing
// active, and it proves idleness up to the beginning of the newest such sample, no further: a session that vanished between
// two samples ended at the later one, and one that began after a sample's beginning is not yet known of. Anything else than a
// proof of idleness, a failed sample included, stops the clock.
//
// # Who is authoritative
//
// The Cluster object says whether the feature is on, who is primary and whether sleep is permitted; the instance says
// whether somebody uses it. Both must agree at the same sample. The clock of the decision begins anew when this instance
// becomes the primary, when the feature is turned on, and when a hibernation that was asked for is withdrawn.
//
// # A wake that nobody used
//
// A cluster that a connection woke sleeps again after a minute if no sample found a session since, and no event told of one,
// on any instance; the threshold is for those that were used. A sample that fails, events that were lost, a sidecar that was
// started anew, another primary, or a server that had run for more than a minute before the first sample end that: then
// somebody may have used it. PostgreSQL's start and the resume of schedules come first, since nothing is decided before the
// Cluster is healthy and its schedules are resumed.
//
// # What failures do
//
//   - A sample that fails stops the clock: sleep is put off by at least a whole threshold.
//   - A Cluster that cannot be read forbids nothing new, but no decision is carried out without reading it once more.
//   - An annotation that is not understood turns the feature off; no default takes its place.
//   - A clock of the machine that is set back makes the wait longer, never shorter.
package idle
