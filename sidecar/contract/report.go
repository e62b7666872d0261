package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// ReportVersion is the version of [Report] that this program writes and reads.
const ReportVersion = 1

// MaxReportBytes is the maximum size of an encoded [Report]; it usually has a few hundred bytes.
const MaxReportBytes = 64 << 10

// ErrInvalidReport means that a report cannot be used.
var ErrInvalidReport = errors.New("unusable activity report")

// PathActivity is where a sidecar serves its [Report].
const PathActivity = "/activity"

// QueryParameterSample is the parameter of a request for /activity that asks for a new sample; its value is a nonce.
const QueryParameterSample = "sample"

// Report is the state of an instance as served at /activity.
type Report struct {
	// Version is ReportVersion; a reader rejects every other.
	Version int `json:"version"`
	// Cluster and Pod identify the instance.
	Cluster string `json:"cluster"`
	Pod     string `json:"pod"`
	// Known reports whether the newest sample succeeded; if not, the instance must be treated as in use.
	Known bool `json:"known"`
	// Active reports whether the newest sample found a session that counts.
	Active bool `json:"active"`
	// Sessions is the number of client sessions by state, absent unless Known.
	Sessions map[string]int `json:"sessions,omitempty"`
	// SampledAt is when the newest successful sample ended; absent before the first.
	SampledAt *time.Time `json:"sampledAt,omitempty"`
	// IdleSince is since when the instance has been proven idle; absent while active or unknown. IdleForSeconds is the
	// same as a duration, because the clocks of two machines differ.
	IdleSince      *time.Time `json:"idleSince,omitempty"`
	IdleForSeconds *float64   `json:"idleForSeconds,omitempty"`
	// SamplesOnDemand reports whether this program can sample on demand; an older one does not know the request.
	SamplesOnDemand bool `json:"samples"`
	// Nonce is that of the request for a sample. If set, everything here is from a sample that began after the request
	// arrived. Only other instances of the cluster may request one.
	Nonce string `json:"nonce,omitempty"`
	// SleepDue is when the cluster will sleep if nothing happens; absent while active or unknown.
	SleepDue *time.Time `json:"due,omitempty"`
	// SocketEvents reports whether the kernel reports TCP sessions when they end. If not, the instance is sampled every
	// second, and shorter sessions may only be known from the counters.
	SocketEvents bool `json:"events"`
	// Unused reports whether it is proven that nobody has used the instance since the wake; never after a wake by a person
	// or a request.
	Unused bool `json:"unused,omitempty"`
	// LastActivity is the newest sign of use; absent before the first.
	LastActivity *time.Time `json:"lastActivity,omitempty"`
	// LastUnseenClient is the address of the newest client that counted but that no sample found.
	LastUnseenClient string `json:"lastUnseenClient,omitempty"`
	// Rules are the rules by which sessions are judged.
	Rules ReportedRules `json:"rules"`
	// AcceptsSleepRequests reports whether this program understands the annotation that requests sleep; an older one
	// treats it as a mistake.
	AcceptsSleepRequests bool `json:"requests"`
	// DecidedAt is when it was decided whether the cluster stays awake; absent before the first decision. Unlike
	// SampledAt it also tells the age of a decision without a sample.
	DecidedAt *time.Time `json:"decidedAt,omitempty"`
	// Reason is the first of the reasons that keep the cluster awake, and Blockers are all of them.
	Reason   string   `json:"reason"`
	Blockers []string `json:"blockers"`
	// DozeBlockers are the reasons why the cluster hibernates without a doze; absent if there are none, or if it is not
	// to doze.
	DozeBlockers []string `json:"dozeBlockers,omitempty"`
	// UnroutableServices names the Services that keep the cluster awake, and why; absent if there are none.
	UnroutableServices string `json:"unroutableServices,omitempty"`
	// IgnoredPods names an item of the annotation that ignores every client from the address of an instance, and so
	// probably every pod; absent if there is none.
	IgnoredPods string `json:"ignoredPods,omitempty"`
	// ServerBlockers are the server's own reasons against a shutdown in the newest sample; absent if there are none.
	ServerBlockers []string `json:"serverBlockers,omitempty"`
	// Scheduler reports whether a loaded extension runs jobs in background workers, so that the instance is sampled
	// every two seconds.
	Scheduler bool `json:"scheduler,omitempty"`
	// WhatIf is how the cluster would have slept at other thresholds; absent if nothing has been counted.
	WhatIf *ReportedWhatIf `json:"whatIf,omitempty"`
}

// ReportedWhatIf is how a cluster would have slept.
type ReportedWhatIf struct {
	// ObservedSeconds is for how long its sidecar has decided, and AwakeSeconds how much of that each first reason kept
	// it awake.
	ObservedSeconds float64            `json:"observedSeconds"`
	AwakeSeconds    map[string]float64 `json:"awakeSeconds"`
	// Sleeps are sorted by threshold, and Own are the sleeps at the cluster's own.
	Sleeps []ReportedSleeps `json:"sleeps"`
	Own    ReportedSleeps   `json:"own"`
	// WakeSeconds is the median of the newest wakes, up to the first sample, and up to a second too long, because
	// the annotation has whole seconds; absent before the first wake.
	WakeSeconds float64 `json:"wakeSeconds,omitempty"`
}

// ReportedSleeps are the sleeps at one threshold.
type ReportedSleeps struct {
	ThresholdSeconds float64 `json:"thresholdSeconds"`
	Count            int     `json:"count"`
	Seconds          float64 `json:"seconds"`
	// Since is when the sleep began that is not over; absent without one.
	Since *time.Time `json:"since,omitempty"`
}

// ReportedRules are the rules that the annotations set.
type ReportedRules struct {
	// Enabled reports whether the sessions are watched, and Observed whether that is all; ThresholdSeconds is how long
	// the cluster must be idle.
	Enabled          bool    `json:"enabled"`
	Observed         bool    `json:"observed,omitempty"`
	ThresholdSeconds float64 `json:"thresholdSeconds"`
	// Activity is the mode, Ignore the unparsed annotation of that name.
	Activity string `json:"activity,omitempty"`
	Ignore   string `json:"ignore,omitempty"`
	// Instances are the names of the cluster's pods, Addresses the addresses of the other ones, sorted.
	Instances []string     `json:"instances,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// EncodeReport encodes a report as JSON.
func EncodeReport(r Report) ([]byte, error) {
	r.Version = ReportVersion
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode activity report: %w", err)
	}
	return body, nil
}

// DecodeReport decodes a report, and ignores fields that a newer program of the same version added. Its errors are
// [ErrInvalidReport].
func DecodeReport(body []byte) (Report, error) {
	if len(body) > MaxReportBytes {
		return Report{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalidReport, len(body), MaxReportBytes)
	}
	var r Report
	if err := json.Unmarshal(body, &r); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrInvalidReport, err)
	}
	if r.Version != ReportVersion {
		return Report{}, fmt.Errorf("%w: version %d, want %d", ErrInvalidReport, r.Version, ReportVersion)
	}
	return r, nil
}
