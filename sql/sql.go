// Package sql embeds the statements that the sidecar runs, each a file that says what it is for and why it is so.
package sql

import _ "embed"

// Activity returns a row for every process of the instance but the one that asks: backend type, user, application name,
// database, state, and whether it came over the Unix socket. NULLs are empty strings.
//
//go:embed activity.sql
var Activity string
