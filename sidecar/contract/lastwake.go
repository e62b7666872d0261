package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// longestLastWake is the maximum size in bytes that is read; what is written is less than a quarter of it.
const longestLastWake = 4 << 10

// ErrInvalidLastWake means that an annotation's value is not a [LastWake].
var ErrInvalidLastWake = errors.New(`not a wake such as {"at":"2026-03-01T18:00:00Z","by":"10.0.0.9","service":"orders-rw"}`)

// LastWake is the value of [AnnotationLastWake]: who last woke the cluster, when, and through which Service. User and Database
// are what the client claimed, and empty if TLS hides them.
type LastWake struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	User     string    `json:"user,omitempty"`
	Database string    `json:"database,omitempty"`
	Service  string    `json:"service"`
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
	if len(value) > longestLastWake {
		return LastWake{}, fmt.Errorf("%d bytes: %w", len(value), ErrInvalidLastWake)
	}
	var w LastWake
	if err := json.Unmarshal([]byte(value), &w); err != nil || w.At.IsZero() || w.By == "" {
		return LastWake{}, fmt.Errorf("%q: %w", value, ErrInvalidLastWake)
	}
	w.At = w.At.UTC()
	return w, nil
}
