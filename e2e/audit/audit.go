// Package audit compares what the project's accounts asked of an API server with what their roles permit: a right that is
// never used is one too many, and a refused request one too few. It reads the API server's audit log, in which the policy of
// the harness has every request of these accounts.
//
// From the same log it makes traces of what happened to each Cluster, against which sidecar/sleep checks its models.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Call is what RBAC decides on, apart from names.
type Call struct{ Verb, Group, Resource, Subresource string }

// String is the call as kubectl writes resources: patch clusters.postgresql.cnpg.io, update services/finalizers.
func (c Call) String() string {
	resource := c.Resource
	if c.Group != "" {
		resource += "." + c.Group
	}
	if c.Subresource != "" {
		resource += "/" + c.Subresource
	}
	return c.Verb + " " + resource
}

// Request is what the API server noted of one request.
type Request struct {
	// User is who asked, and Agent the program, by its own word.
	User, Agent string
	Call        Call
	// Received is when the API server got it.
	Received time.Time
	// Code is the HTTP status of the answer, Message its words if it was a refusal.
	Code    int
	Message string
	// Forbidden says that no role permitted it.
	Forbidden bool
	// Grants are the rules of a Role that was written with the request.
	Grants []rbacv1.PolicyRule
}

// event is an event of audit.k8s.io/v1, as far as it matters here.
type event struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	User       struct {
		Username string              `json:"username"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"responseStatus"`
	// RequestObject is a patch too, which need not be an object.
	RequestObject  json.RawMessage   `json:"requestObject"`
	ResponseObject json.RawMessage   `json:"responseObject"`
	Received       time.Time         `json:"requestReceivedTimestamp"`
	Done           time.Time         `json:"stageTimestamp"`
	Annotations    map[string]string `json:"annotations"`
}

// read passes the events of a log, whose last line may still be being written.
func read(log io.Reader, take func(*event) error) error {
	decoder := json.NewDecoder(bufio.NewReaderSize(log, 1<<20))
	for count := 0; ; count++ {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the audit log after %d requests: %w", count, err)
		}
		if err := take(&e); err != nil {
			return fmt.Errorf("read %s %s/%s of the audit log: %w", e.Verb, e.ObjectRef.Namespace, e.ObjectRef.Name, err)
		}
	}
}

// Read reads a log. What asks for no resource, such as discovery, is left out.
func Read(log io.Reader) ([]Request, error) {
	var requests []Request
	err := read(log, func(e *event) error {
		if e.ObjectRef.Resource != "" {
			requests = append(requests, Request{
				User: e.User.Username, Agent: e.UserAgent, Received: e.Received,
				Call: Call{Verb: e.Verb, Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource},
				Code: e.ResponseStatus.Code, Message: e.ResponseStatus.Message,
				Forbidden: e.Annotations["authorization.k8s.io/decision"] == "forbid",
				Grants:    e.grants(),
			})
		}
		return nil
	})
	return requests, err
}

// grants are the rules of a Role that was written.
func (e *event) grants() []rbacv1.PolicyRule {
	var role rbacv1.Role
	if e.ObjectRef.Resource != "roles" || json.Unmarshal(e.RequestObject, &role) != nil {
		return nil
	}
	return role.Rules
}

// Granted are the calls that rules permit, each once, in order.
func Granted(rules []rbacv1.PolicyRule) []Call {
	var calls []Call
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, name := range rule.Resources {
				resource, subresource, _ := strings.Cut(name, "/")
				for _, verb := range rule.Verbs {
					calls = append(calls, Call{verb, group, resource, subresource})
				}
			}
		}
	}
	return ordered(calls)
}

func ordered(calls []Call) []Call {
	slices.SortFunc(calls, func(a, b Call) int {
		return strings.Compare(a.Group+"/"+a.Resource+"/"+a.Subresource+"/"+a.Verb, b.Group+"/"+b.Resource+"/"+b.Subresource+"/"+b.Verb)
	})
	return slices.Compact(calls)
}

// refused tells whether a request met a right that was not there: no role permitted it, or admission did not. In a namespace
// that is being deleted nothing can be made, by nobody, and a quota is no right.
func (r Request) refused() bool {
	switch {
	case r.Forbidden:
		return true
	case r.Code == http.StatusForbidden:
		return !strings.Contains(r.Message, "because it is being terminated") && !strings.Contains(r.Message, " quota: ")
	default:
		return strings.Contains(r.Message, "ValidatingAdmissionPolicy")
	}
}
