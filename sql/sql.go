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
