package activity

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ReportVersion is the version of [Report] that this program writes and reads.
const ReportVersion = 1

// maximumReport bounds, in bytes, what is read from a sibling.
const maximumReport = 64 << 10

// ErrReport says that a report cannot be used.
var ErrReport = errors.New("unusable activity report")

// Report is what an instance last saw, as /activity gives it.
type Report struct {
	// Version is ReportVersion; a reader refuses every other.
	Version int `json:"version"`
	// Cluster and Pod say whose report it is.
	Cluster string `json:"cluster"`
	Pod     string `json:"pod"`
	// Known says whether the newest look showed anything; if not, the instance is to be taken as in use.
	Known bool `json:"known"`
	// Active says that the newest look found a session that counts.
	Active bool `json:"active"`
	// Sessions is the number of client sessions by state, absent unless Known.
	Sessions map[string]int `json:"sessions,omitempty"`
	// SampledAt is when the newest successful look ended; absent before the first.
	SampledAt *time.Time `json:"sampledAt,omitempty"`
	// IdleSince is the start of the time that is proven idle; absent while active or unknown. IdleForSeconds is the same as a
	// duration: the clocks of two machines differ.
	IdleSince      *time.Time `json:"idleSince,omitempty"`
	IdleForSeconds *float64   `json:"idleForSeconds,omitempty"`
	// Confirmed is the announcement of sleep after which the instance has looked once more; absent without one.
	Confirmed string `json:"confirmed,omitempty"`
	// Due is when the cluster will sleep if nothing happens; absent while active or unknown.
	Due *time.Time `json:"due,omitempty"`
	// Events says whether the kernel reports the TCP sessions that end; if not, the instance is looked at every second, and a
	// session that is shorter may be known by the counters only.
	Events bool `json:"events"`
	// LastActivity is the newest evidence of use; absent before the first.
	LastActivity *time.Time `json:"lastActivity,omitempty"`
	// LastUnseenClient is the address of the newest client that came and went between two looks, and counted.
	LastUnseenClient string `json:"lastUnseenClient,omitempty"`
	// Rules are what the sessions are judged by.
	Rules ReportedRules `json:"rules"`
	// Requests says that this program obeys the annotation that asks for sleep; an older one takes it as a mistake.
	Requests bool `json:"requests"`
	// Reason is the first of what keeps the cluster awake, and Blockers everything.
	Reason   string   `json:"reason"`
	Blockers []string `json:"blockers"`
}

// ReportedRules are what the annotations ask for.
type ReportedRules struct {
	// Enabled says that the feature is on, ThresholdSeconds for how long the cluster must be idle.
	Enabled          bool    `json:"enabled"`
	ThresholdSeconds float64 `json:"thresholdSeconds"`
	// Activity is the mode, Ignore the annotation of that name as it is.
	Activity string `json:"activity,omitempty"`
	Ignore   string `json:"ignore,omitempty"`
	// Instances are the names of the cluster's pods.
	Instances []string `json:"instances,omitempty"`
}

// EncodeReport writes a report as JSON.
func EncodeReport(r Report) ([]byte, error) {
	r.Version = ReportVersion
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode activity report: %w", err)
	}
	return body, nil
}

// DecodeReport reads a report; fields that a newer program of the same version added are passed over. Errors are
// ErrReport.
func DecodeReport(body []byte) (Report, error) {
	if len(body) > maximumReport {
		return Report{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrReport, len(body), maximumReport)
	}
	var r Report
	if err := json.Unmarshal(body, &r); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrReport, err)
	}
	if r.Version != ReportVersion {
		return Report{}, fmt.Errorf("%w: version %d, want %d", ErrReport, r.Version, ReportVersion)
	}
	return r, nil
}
