package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/e2e/audit"
)

// requests are those that the plugin made from a time on.
func (s *server) requests(from time.Time) ([]audit.Request, error) {
	file, err := os.Open(s.audit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	found, err := audit.Read(file)
	return slices.DeleteFunc(found, func(r audit.Request) bool { return r.Received.Before(from) }), err
}

func writes(requests []audit.Request) []audit.Request {
	return slices.DeleteFunc(slices.Clone(requests), func(r audit.Request) bool { return r.Call.Verb == "get" || r.Call.Verb == "list" })
}

// summary counts requests by what they were.
func summary(requests []audit.Request) string {
	counts := map[string]int{}
	for _, r := range requests {
		what := r.Call.Verb + " " + r.Call.Resource
		switch r.Code {
		case http.StatusTooManyRequests:
			what += " (429)"
		case http.StatusConflict:
			what += " (409)"
		}
		counts[what]++
	}
	if len(counts) == 0 {
		return "none"
	}
	var parts []string
	for _, what := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) }) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	return strings.Join(parts, ", ")
}
