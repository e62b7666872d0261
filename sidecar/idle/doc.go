// Package idle decides when a PostgreSQL cluster may be put to sleep.
//
// It is pure: [Decide] takes the policy, what was known before, one look at the instance and its Cluster, and the time,
// and returns what is known now and what to do. It reads no clock and does no I/O, so that every behaviour can be written
// down as a transcript (testdata) and held against a naive oracle (the fuzz test).
//
// # What counts
//
// The guarantee is that unknown is never idle. The idle clock starts at the end of the first look that found nothing
// active, and it proves idleness up to the beginning of the newest such look, no further: a session that vanished between
// two looks ended at the later one, and one that began after a look's beginning is not yet known of. Anything else than a
// proof of idleness, a look that failed included, stops the clock.
//
// # Who is authoritative
//
// The Cluster object says whether the feature is on, who is primary and whether sleep is permitted; the instance says
// whether somebody uses it. Both must agree at the same look. The clock of the decision begins anew when this instance
// becomes the primary, when the feature is turned on, and when a hibernation that was asked for is withdrawn.
//
// # What failures do
//
//   - A look that fails stops the clock: sleep is put off by at least a whole threshold.
//   - A Cluster that cannot be read forbids nothing new, but no decision is carried out without reading it once more.
//   - An annotation that is not understood turns the feature off; no default takes its place.
//   - A clock of the machine that is set back makes the wait longer, never shorter.
package idle
