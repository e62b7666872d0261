package postgres

import _ "embed" // each statement is a file, which explains its purpose and reasons

// activityStatement returns what one sample of an instance shows, in rows of the kinds session, database, server and
// blocker.
//
//go:embed activity.sql
var activityStatement string

// terminateStatement ends sessions that were judged not to count: $1 pids, $2 starts, $3 whether judged by being idle,
// $4 since when at the latest. Times are microseconds since 1970.
//
//go:embed terminate.sql
var terminateStatement string

// stoppingStatement returns whether the server has begun to stop.
//
//go:embed stopping.sql
var stoppingStatement string

// archiveSwitchStatement completes the WAL file in use and returns the name of the newest completed file, empty if
// nothing is archived.
//
//go:embed archive-switch.sql
var archiveSwitchStatement string

// archiveQueueStatement returns how many files wait for the archiver up to the WAL file $1, and how many before it.
//
//go:embed archive-queue.sql
var archiveQueueStatement string

// archiveLateStatement returns whether WAL has waited for the archiver for more than $1 seconds.
//
//go:embed archive-late.sql
var archiveLateStatement string

// passwordSetStatement returns whether the password of role $1 has been set since the last checkpoint.
//
//go:embed password-set.sql
var passwordSetStatement string
