// Package sql embeds the statements that the sidecar runs. Each file explains its purpose and reasons.
package sql

import _ "embed"

// Activity returns what one sample of an instance shows, in rows of the kinds session, database, server and blocker.
//
//go:embed activity.sql
var Activity string

// Terminate ends sessions that were judged not to count: $1 pids, $2 starts, $3 whether judged by being idle, $4 since when
// at the latest. Times are microseconds since 1970.
//
//go:embed terminate.sql
var Terminate string

// Stopping returns whether the server has begun to stop.
//
//go:embed stopping.sql
var Stopping string

// ArchiveSwitch completes the WAL file in use and returns the name of the newest completed file, empty if nothing is archived.
//
//go:embed archive-switch.sql
var ArchiveSwitch string

// ArchiveQueue returns how many files wait for the archiver up to the WAL file $1, and how many before it.
//
//go:embed archive-queue.sql
var ArchiveQueue string

// ArchiveLate returns whether WAL has waited for the archiver for more than $1 seconds.
//
//go:embed archive-late.sql
var ArchiveLate string
