package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ReportVersion is the version of [Report] that this program writes and reads.
const ReportVersion = 1

// MaximumReport bounds a [Report] in bytes; it has some hundred.
const MaximumReport = 64 << 10

// ErrReport says that a report cannot be used.
var ErrReport = errors.New("unusable activity report")

// PathActivity is where a sidecar serves its [Report].
const PathActivity = "/activity"

// ParameterSample is the parameter of a request for /activity that asks for a sample; its value is a nonce.
const ParameterSample = "sample"

// Report is what an instance last saw, as /activity gives it.
type Report struct {
	// Version is ReportVersion; a reader refuses every other.
	Version int `json:"version"`
	// Cluster and Pod say whose report it is.
	Cluster string `json:"cluster"`
	Pod     string `json:"pod"`
	// Known reports whether the newest sample showed anything; if not, the instance is to be taken as in use.
	Known bool `json:"known"`
	// Active says that the newest sample found a session that counts.
	Active bool `json:"active"`
	// Sessions is the number of client sessions by state, absent unless Known.
	Sessions map[string]int `json:"sessions,omitempty"`
	// SampledAt is when the newest successful sample ended; absent before the first.
	SampledAt *time.Time `json:"sampledAt,omitempty"`
	// IdleSince is the start of the time that is proven idle; absent while active or unknown. IdleForSeconds is the same as a
	// duration: the clocks of two machines differ.
	IdleSince      *time.Time `json:"idleSince,omitempty"`
	IdleForSeconds *float64   `json:"idleForSeconds,omitempty"`
	// Samples says that this program samples on demand; an older one does not know the request.
	Samples bool `json:"samples"`
	// Nonce is that of the request, if the instance was sampled for it: everything here is of a sample that began after the
	// request had come. Only other instances of the cluster may ask for one.
	Nonce string `json:"nonce,omitempty"`
	// Due is when the cluster will sleep if nothing happens; absent while active or unknown.
	Due *time.Time `json:"due,omitempty"`
	// Events reports whether the kernel reports the TCP sessions that end; if not, the instance is sampled every second, and a
	// session that is shorter may be known by the counters only.
	Events bool `json:"events"`
	// Unused reports whether everything since a connection woke the cluster shows that nobody has used the instance.
	Unused bool `json:"unused,omitempty"`
	// LastActivity is the newest sign of use; absent before the first.
	LastActivity *time.Time `json:"lastActivity,omitempty"`
	// LastUnseenClient is the address of the newest client that came and went between two samples, and counted.
	LastUnseenClient string `json:"lastUnseenClient,omitempty"`
	// Rules are what the sessions are judged by.
	Rules ReportedRules `json:"rules"`
	// Requests says that this program understands the annotation that asks for sleep; an older one takes it as a mistake.
	Requests bool `json:"requests"`
	// Reason is the first of what keeps the cluster awake, and Blockers everything.
	Reason   string   `json:"reason"`
	Blockers []string `json:"blockers"`
	// UnroutableServices names the Services that keep the cluster awake, and why; absent without any.
	UnroutableServices string `json:"unroutableServices,omitempty"`
	// ServerBlockers is what the server itself said against a shutdown at the newest sample; absent if it said nothing.
	ServerBlockers []string `json:"serverBlockers,omitempty"`
	// Scheduler says that an extension is loaded whose background workers run jobs, so that the instance is sampled every two
	// seconds.
	Scheduler bool `json:"scheduler,omitempty"`
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
	if len(body) > MaximumReport {
		return Report{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrReport, len(body), MaximumReport)
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
