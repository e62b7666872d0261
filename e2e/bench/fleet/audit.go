package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// request is what the API server notes of a request of the plugin's.
type request struct {
	Verb      string    `json:"verb"`
	Received  time.Time `json:"requestReceivedTimestamp"`
	ObjectRef struct {
		Resource string `json:"resource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// requests are those that the plugin made from a time on.
func (s *server) requests(from time.Time) ([]request, error) {
	file, err := os.Open(s.audit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	var found []request
	decoder := json.NewDecoder(bufio.NewReaderSize(file, 1<<20))
	for {
		var r request
		err := decoder.Decode(&r)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // its last line is being written
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		if !r.Received.Before(from) {
			found = append(found, r)
		}
	}
}

func writes(requests []request) []request {
	return slices.DeleteFunc(slices.Clone(requests), func(r request) bool { return r.Verb == "get" || r.Verb == "list" })
}

// summary counts requests by what they were.
func summary(requests []request) string {
	counts := map[string]int{}
	for _, r := range requests {
		what := r.Verb + " " + r.ObjectRef.Resource
		switch r.ResponseStatus.Code {
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
