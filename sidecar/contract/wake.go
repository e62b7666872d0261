package contract

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// maxLastWakeBytes is the maximum size of a value that is read. Values that this program writes have less than a
// quarter of it.
const maxLastWakeBytes = 4 << 10

// ErrInvalidLastWake means that an annotation's value is not a [LastWake].
var ErrInvalidLastWake = errors.New(`not a wake such as {"at":"2026-03-01T18:00:00Z","by":"192.0.2.9","service":"orders-rw"}`)

// DepthDoze is the Depth of a wake from a doze: only PostgreSQL had to be started again.
const DepthDoze = "doze"

// Cause is what began a wake.
type Cause string

// The causes.
const (
	// CauseConnection means that a client has connected.
	CauseConnection Cause = "connection"
	// CauseBackup means that a ScheduledBackup is due, or that a Backup waits for a cluster that dozes.
	CauseBackup Cause = "backup"
	// CauseWindow means that a keep-awake window opens.
	CauseWindow Cause = "window"
	// CauseRequest means that the annotation [AnnotationWakeRequested] asks for it.
	CauseRequest Cause = "request"
	// CauseObject means that an object is to be applied or deleted, which only a running instance does.
	CauseObject Cause = "object"
)

// LastWake is the value of [AnnotationLastWake]: the newest wake of the cluster.
type LastWake struct {
	// At is the time of the wake.
	At time.Time `json:"at"`
	// Cause is what began it. Absent if that was a connection, or an earlier version of the plugin wrote the value.
	Cause Cause `json:"cause,omitempty"`
	// By is the client's IP address, or names the Backup or its schedule, the window, the request or the objects.
	By string `json:"by"`
	// User and Database are those of the client's startup packet; empty without one, or if TLS hides them.
	User     string `json:"user,omitempty"`
	Database string `json:"database,omitempty"`
	// Service is the name of the Service that the client connected to; empty without one.
	Service string `json:"service"`
	// Depth is [DepthDoze], or empty if the cluster was hibernated.
	Depth string `json:"depth,omitempty"`
	// Since is [AnnotationAsleepSince] of the hibernation that the wake ended; absent for a doze.
	Since string `json:"since,omitempty"`
	// Unused is the number of consecutive wakes from the same source, before this one, that were not used, or that left
	// their objects or Backups pending.
	Unused int `json:"unused,omitempty"`
	// Returns is how many wakes in a row, up to this one, were for a client that came within seconds of the sleep.
	Returns int `json:"returns,omitempty"`
}

// Encode returns the annotation's value. The time is truncated to seconds.
func (w LastWake) Encode() (string, error) {
	w.At = w.At.UTC().Truncate(time.Second)
	value, err := json.Marshal(w)
	if err != nil {
		return "", fmt.Errorf("encode the last wake: %w", err)
	}
	return string(value), nil
}

// ParseLastWake parses the annotation's value, and ignores fields that a newer program added. Its errors are
// [ErrInvalidLastWake].
func ParseLastWake(value string) (LastWake, error) {
	if len(value) > maxLastWakeBytes {
		return LastWake{}, fmt.Errorf("%d bytes: %w", len(value), ErrInvalidLastWake)
	}
	var w LastWake
	if err := json.Unmarshal([]byte(value), &w); err != nil || w.At.IsZero() || w.By == "" {
		return LastWake{}, fmt.Errorf("%q: %w", value, ErrInvalidLastWake)
	}
	w.At = w.At.UTC()
	return w, nil
}

// Who describes the client as far as it is visible: TLS hides the names.
func (w LastWake) Who() string {
	if w.User == "" {
		return w.By
	}
	return fmt.Sprintf("%s (user %q, database %q)", w.By, ShortName(w.User), ShortName(cmp.Or(w.Database, w.User)))
}

// maximumName is the maximum length of PostgreSQL's names in bytes. A client may claim longer ones.
const maximumName = 63

// ShortName shortens a name that a client claims, or another value that anybody may have written.
func ShortName(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maximumName)], "")
}
