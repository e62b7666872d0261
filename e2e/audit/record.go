package audit

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// postgresql is the operator's API group.
const postgresql = "postgresql.cnpg.io"

// Parties that write Clusters and ScheduledBackups.
type party int

const (
	person party = iota
	instance
	plugin
	operator
)

// record is what the log has of a request that matters to a trace.
type record struct {
	received, done time.Time
	verb, resource string
	namespace      string
	name           string // of the object
	code           int
	body           []byte // of the request
	answer         []byte // an object, a list or a Status
	by             party
	pod            string // that asked
	version        uint64 // the resourceVersion that was written; 0: none
	object         object // that was written
}

// took reports whether the request took effect.
func (r *record) took() bool { return r.code >= http.StatusOK && r.code < http.StatusMultipleChoices }

// unanswered reports whether the API server failed, so that the request may or may not have taken effect.
func (r *record) unanswered() bool { return r.code >= http.StatusInternalServerError }

// mentions reports whether the request says something of an annotation or a field.
func (r *record) mentions(key string) bool { return strings.Contains(string(r.body), `"`+key+`"`) }

// records reads what matters of a log.
func records(log io.Reader) ([]record, error) {
	var all []record
	err := read(log, func(e *event) error {
		if !e.matters() {
			return nil
		}
		r, err := e.record()
		all = append(all, r)
		return err
	})
	return all, err
}

// matters reports whether the request wrote a Cluster or ScheduledBackup, or is a sidecar's list of Backups.
func (e *event) matters() bool {
	if e.ObjectRef.APIGroup != postgresql || e.ObjectRef.Subresource != "" {
		return false
	}
	switch e.ObjectRef.Resource {
	case "clusters", "scheduledbackups":
		switch e.Verb {
		case "create", "update", "patch", "delete", "deletecollection":
			return !e.dryRun()
		}
	case "backups":
		return e.Verb == "list" && e.by() == instance
	}
	return false
}

func (e *event) dryRun() bool {
	uri, err := url.ParseRequestURI(e.RequestURI)
	return err == nil && uri.Query().Has("dryRun")
}

// by is who asked. The instance manager has the account of the sidecar beside it, and belongs to the operator; a plugin in the
// operator's pod has the operator's account.
func (e *event) by() party {
	account, ok := strings.CutPrefix(e.User.Username, users)
	switch {
	case !ok:
		return person
	case account == Namespace+":"+Plugin, strings.HasPrefix(e.UserAgent, pluginAgent):
		return plugin
	case e.UserAgent == sidecarAgent:
		return instance
	default:
		return operator
	}
}

// pod is the one that asked; empty if its token does not say.
func (e *event) pod() string {
	if names := e.User.Extra["authentication.kubernetes.io/pod-name"]; len(names) == 1 {
		return names[0]
	}
	return ""
}

// record reads the object that was written.
func (e *event) record() (record, error) {
	r := record{
		received: e.Received, done: e.Done, verb: e.Verb, resource: e.ObjectRef.Resource, namespace: e.ObjectRef.Namespace, name: e.ObjectRef.Name,
		code: e.ResponseStatus.Code, body: e.RequestObject, answer: e.ResponseObject, by: e.by(), pod: e.pod(),
	}
	if !r.took() || e.Verb == "list" || strings.HasPrefix(e.Verb, "delete") {
		return r, nil
	}
	if err := json.Unmarshal(e.ResponseObject, &r.object); err != nil {
		return record{}, fmt.Errorf("decode the answer: %w", err)
	}
	r.name = r.object.Metadata.Name // a name may be generated
	version, err := strconv.ParseUint(r.object.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return record{}, fmt.Errorf("read the resourceVersion: %w", err)
	}
	r.version = version
	return r, nil
}

var podName = regexp.MustCompile(`^(.+)-[0-9]+$`)

// cluster is the name of the Cluster that the request is about; known are those of the ScheduledBackups.
func (r *record) cluster(known map[string]string) string {
	switch r.resource {
	case "clusters":
		return r.name
	case "scheduledbackups":
		if name := r.object.Spec.Cluster.Name; name != "" {
			known[r.namespace+"/"+r.name] = name
		}
		return known[r.namespace+"/"+r.name]
	}
	if parts := podName.FindStringSubmatch(r.pod); parts != nil {
		return parts[1]
	}
	return ""
}
