package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// noon is the time of all requests.
var noon = time.Date(2026, time.March, 2, 13, 0, 0, 0, time.FixedZone("CET", 3600))

func scheduledBackup(name, cluster, suspend, annotations string, owners ...string) string {
	return fmt.Sprintf(`{"metadata": {"name": %q, "annotations": {%s}, "managedFields": [%s]}, "spec": {"cluster": {"name": %q}, "schedule": "0 0 0 * * *", "suspend": %s}}`,
		name, annotations, strings.Join(owners, ", "), cluster, suspend)
}

// owner is the managedFields entry of a manager that set spec.suspend.
func owner(manager, operation string) string {
	return fmt.Sprintf(`{"manager": %q, "operation": %q, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:suspend": {}}}}`, manager, operation)
}

const marked = `"xata.io/scale-to-zero-suspended": "2026-03-02T12:00:00Z"`

// stocked is an API server with the objects of the transcripts.
func stocked(t *testing.T) *apiServer {
	a := newAPI()
	a.put(t, clusters, clusterWith())
	a.put(t, schedules, scheduledBackup("of-a-person", "blue", "true", ""))
	a.put(t, schedules, scheduledBackup("nightly", "blue", "false", ""))
	a.put(t, schedules, scheduledBackup("of-another", "red", "false", ""))
	a.put(t, schedules, scheduledBackup("ours", "blue", "true", marked, owner(contract.FieldManager, "Update")))
	a.put(t, schedules, scheduledBackup("taken-over", "blue", "true", marked, owner("kubectl-edit", "Update")))
	a.put(t, schedules, scheduledBackup("applied-by-another", "blue", "true", marked, owner(contract.FieldManager, "Update"), owner("argocd-controller", "Apply")))
	a.put(t, schedules, scheduledBackup("resumed-by-a-person", "blue", "false", marked))
	return a
}

// golden compares with a file under testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestClient_requestsAreGolden(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, file string
		act        func(ctx context.Context, c *Client) error
	}{
		{"reading the Cluster names it", "get", func(ctx context.Context, c *Client) error {
			_, err := c.Get(ctx)
			return err
		}},
		{"the hibernation annotation and its markers are one patch with a precondition", "hibernate", func(ctx context.Context, c *Client) error {
			return second(c.Hibernate(ctx, View{ResourceVersion: "1"}, noon, "idle since noon", "{}"))
		}},
		{"only what is not suspended is suspended, and marked in the same patch; what carries our mark is marked anew", "suspend", func(ctx context.Context, c *Client) error {
			changed, err := c.SuspendBackups(ctx, noon)
			return wantChanged(changed, 5, err)
		}},
		{"only what is marked is resumed, and a person's choice is kept", "resume", func(ctx context.Context, c *Client) error {
			resumed, err := c.ResumeBackups(ctx)
			return wantChanged(resumed.Changed, 4, err)
		}},
		{"Backups are read in pages", "backups", func(ctx context.Context, c *Client) error {
			_, err := c.RunningBackups(ctx)
			return err
		}},
		{"an Event is about the Cluster", "event", func(ctx context.Context, c *Client) error {
			return c.Record(ctx, View{Name: "blue", UID: "0f0e", ResourceVersion: "7"}, Event{Type: EventNormal, Reason: "Hibernated", Message: "Put to sleep"}, noon)
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			a := stocked(t)
			if err := row.act(t.Context(), connect(t, a)); err != nil {
				t.Fatal(err)
			}
			a.with(func() { golden(t, row.file+".requests", strings.Join(a.requests, "\n\n")+"\n") })
		})
	}
}

func wantChanged(got, want int, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("changed %d, want %d", got, want)
	}
	return err
}

func TestResumeBackups_leavesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, a)
	if _, err := c.SuspendBackups(t.Context(), noon); err != nil {
		t.Fatal(err)
	}
	// A person resumes one while the cluster sleeps: the mark is removed, the person's choice stays.
	a.put(t, schedules, scheduledBackup("ours", "blue", "false", marked))
	if _, err := c.ResumeBackups(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"of-a-person": true, "nightly": false, "of-another": false, "ours": false, "resumed-by-a-person": false, "taken-over": true, "applied-by-another": true}
	a.with(func() {
		for name, suspended := range want {
			found := a.objects[schedules+"/"+name]
			if got := found["spec"].(object)["suspend"]; got != suspended {
				t.Errorf("%s: suspend is %v", name, got)
			}
			annotations, _ := found["metadata"].(object)["annotations"].(object)
			if len(annotations) != 0 {
				t.Errorf("%s keeps %v", name, annotations)
			}
		}
	})
	if again, err := c.ResumeBackups(t.Context()); again.Changed != 0 || err != nil {
		t.Errorf("resumed again: %+v, %v", again, err)
	}
}

// The primary may have changed, and the cluster may hibernate, before the watch tells.
func TestResumeBackups_isForThePrimaryOfAnAwakeCluster(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, where, addition string }{
		{"another instance is the primary", "status", `, "currentPrimary": "blue-2"`},
		{"the cluster hibernates", "annotations", `, "cnpg.io/hibernation": "on"`},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			a := stocked(t)
			a.put(t, clusters, clusterWith(row.where, row.addition))
			if resumed, err := connect(t, a).ResumeBackups(t.Context()); resumed.Changed != 0 || !errors.Is(err, ErrConflict) {
				t.Errorf("%+v, %v", resumed, err)
			}
		})
	}
}

func TestSuspendBackups_oneThatFailsDoesNotKeepTheOthers(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/nightly") {
			a.put(t, schedules, scheduledBackup("nightly", "blue", "false", `"changed": "meanwhile"`))
		}
		a.ServeHTTP(w, r)
	}))
	changed, err := c.SuspendBackups(t.Context(), noon)
	if changed != 4 || !errors.Is(err, ErrConflict) {
		t.Errorf("changed %d, error %v", changed, err)
	}
}

// A resuming patch whose answer was lost may arrive after the next attempt to sleep has begun.
func TestSuspendBackups_fencesALatePatchThatResumes(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, a)
	var late *patch
	var before string
	a.with(func() {
		before = a.objects[schedules+"/ours"]["metadata"].(object)["resourceVersion"].(string)
		late = &patch{
			Metadata: patchMetadata{ResourceVersion: before, Annotations: map[string]*string{contract.AnnotationSuspended: nil}},
			Spec:     &suspension{},
		}
	})
	if _, err := c.SuspendBackups(t.Context(), noon); err != nil {
		t.Fatal(err)
	}
	if err := c.apply(t.Context(), "scheduledbackups", "ours", *late, &ScheduledBackup{}); !errors.Is(err, ErrConflict) {
		t.Errorf("the late patch: %v", err)
	}
	a.with(func() {
		ours := a.objects[schedules+"/ours"]
		if ours["spec"].(object)["suspend"] != true || ours["metadata"].(object)["annotations"].(object)[contract.AnnotationSuspended] == nil {
			t.Errorf("the schedule is %v", ours)
		}
	})
}

// tripper makes a transport from a function.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestHibernate_failsOnAClusterThatChanged(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, a)
	v, err := c.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.put(t, clusters, clusterWith("annotations", `, "xata.io/scale-to-zero-inactivity-minutes": "60"`))
	if _, err := c.Hibernate(t.Context(), v, noon, "idle", "{}"); !errors.Is(err, ErrConflict) {
		t.Errorf("error: %v", err)
	}
	if v, err = c.Get(t.Context()); err != nil || v.Hibernating {
		t.Errorf("hibernating %t, error %v", v.Hibernating, err)
	}
	if _, err := c.Hibernate(t.Context(), v, noon, "idle", "{}"); err != nil {
		t.Error(err)
	}
	if v, err = c.Get(t.Context()); err != nil || !v.Hibernating {
		t.Errorf("hibernating %t, error %v", v.Hibernating, err)
	}
}

// The counts are only for reports: what the API server says of their annotation prevents no sleep.
func TestHibernate_leavesOutCountsThatAreRefused(t *testing.T) {
	t.Parallel()
	const old = `, "` + contract.AnnotationCounts + `": "old"`
	for _, row := range []struct {
		rule, there string
		code        int
		removable   bool
		sent        int
		slept       bool
		left        string
	}{
		{"an admission policy that does not know them", "", http.StatusForbidden, true, 2, true, ""},
		{"a webhook that denies without a code of its own", "", http.StatusBadRequest, true, 2, true, ""},
		{"annotations that are too large", "", http.StatusUnprocessableEntity, true, 2, true, ""},
		{"a value that may not change stays", old, http.StatusForbidden, false, 3, true, "old"},
		{"one that may be removed is", old, http.StatusUnprocessableEntity, true, 2, true, ""},
		{"an account without a token is refused anyway", old, http.StatusUnauthorized, true, 1, false, "old"},
		{"so is one of too many requests", old, http.StatusTooManyRequests, true, 1, false, "old"},
		{"and a Cluster that has changed", old, http.StatusConflict, true, 1, false, "old"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			a := stocked(t)
			a.put(t, clusters, clusterWith("annotations", row.there))
			sent := 0
			c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				if r.Method == http.MethodPatch {
					sent++
				}
				removal := bytes.Contains(body, []byte(contract.AnnotationCounts+`":null`))
				if err != nil || bytes.Contains(body, []byte(contract.AnnotationCounts)) && (!removal || !row.removable) {
					w.Header().Set("Content-Type", "application/json")
					status(w, row.code, "", "instances may not change this annotation")
					return
				}
				a.ServeHTTP(w, r)
			}))
			v, err := c.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := second(c.Hibernate(t.Context(), v, noon, "idle", "{}")); (err == nil) != row.slept || sent != row.sent {
				t.Errorf("%d patches, want %d, error %v", sent, row.sent, err)
			}
			if v, err = c.Get(t.Context()); err != nil || v.Hibernating != row.slept ||
				v.Annotations[contract.AnnotationCounts] != row.left {
				t.Errorf("hibernating %t, counts %q, error %v", v.Hibernating, v.Annotations[contract.AnnotationCounts], err)
			}
			if !row.slept {
				return
			}
			sent = 0
			if err := second(c.Hibernate(t.Context(), v, noon, "idle", "{}")); err != nil || sent != 1 {
				t.Errorf("later %d patches, error %v", sent, err)
			}
		})
	}
}

// A policy that refuses hibernation itself says nothing about the counts.
func TestHibernate_writesCountsAfterAllWasRefused(t *testing.T) {
	t.Parallel()
	a, frozen := stocked(t), true
	c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if frozen && r.Method == http.MethodPatch {
			w.Header().Set("Content-Type", "application/json")
			status(w, http.StatusForbidden, "", "nothing changes at Christmas")
			return
		}
		a.ServeHTTP(w, r)
	}))
	v, err := c.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Hibernate(t.Context(), v, noon, "idle", "{}"); err == nil {
		t.Fatal("it hibernates")
	}
	frozen = false
	if v, err = c.Hibernate(t.Context(), v, noon, "idle", "{}"); err != nil || v.Annotations[contract.AnnotationCounts] != "{}" {
		t.Errorf("counts %q, error %v", v.Annotations[contract.AnnotationCounts], err)
	}
}

func TestHibernate_isNotSentWithoutAPrecondition(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	if _, err := connect(t, a).Hibernate(t.Context(), View{}, noon, "idle", "{}"); !errors.Is(err, errNoVersion) {
		t.Errorf("error: %v", err)
	}
	a.with(func() {
		if len(a.requests) != 0 {
			t.Errorf("requests: %v", a.requests)
		}
	})
}

func TestRunningBackups_areThoseThatHaveNotEnded(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, cluster, phase string
		want                 int
	}{
		{"a completed Backup has ended", "blue", "completed", 0},
		{"a failed Backup has ended", "blue", "failed", 0},
		{"an invalid Backup never begins", "blue", "invalid backup definition", 0},
		{"a Backup that the operator has not seen yet runs", "blue", "", 1},
		{"a pending Backup runs", "blue", "pending", 1},
		{"a started Backup runs, as those of plugins stay", "blue", "started", 1},
		{"a running Backup runs", "blue", "running", 1},
		{"a finalizing Backup runs", "blue", "finalizing", 1},
		{"a Backup that waits for archiving runs", "blue", "walArchivingFailing", 1},
		{"a phase of a later operator runs", "blue", "verifying", 1},
		{"another cluster's Backup is not ours", "red", "running", 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			a := newAPI()
			a.put(t, backups, fmt.Sprintf(`{"metadata": {"name": "one"}, "spec": {"cluster": {"name": %q}}, "status": {"phase": %q}}`, row.cluster, row.phase))
			running, err := connect(t, a).RunningBackups(t.Context())
			if err != nil || len(running) != row.want {
				t.Errorf("running %v, error %v", running, err)
			}
		})
	}
}

func TestRunningBackups_readsEveryPage(t *testing.T) {
	t.Parallel()
	a := newAPI()
	for i := range 2*pageSize + 1 {
		a.put(t, backups, fmt.Sprintf(`{"metadata": {"name": "b%03d"}, "spec": {"cluster": {"name": "blue"}}, "status": {"phase": "completed"}}`, i))
	}
	a.put(t, backups, `{"metadata": {"name": "z"}, "spec": {"cluster": {"name": "blue"}}, "status": {"phase": "running"}}`)
	running, err := connect(t, a).RunningBackups(t.Context())
	if err != nil || !cmp.Equal(running, []string{"z"}) {
		t.Errorf("running %v, error %v", running, err)
	}
	a.with(func() {
		if len(a.requests) != 3 {
			t.Errorf("%d requests", len(a.requests))
		}
	})
}

func TestRecord_cutsALongMessageBetweenCharacters(t *testing.T) {
	t.Parallel()
	for length := maximumMessage - 3; length < maximumMessage+4; length++ {
		message := strings.Repeat("a", length%3) + strings.Repeat("ü", length/2)
		short := shorten(message)
		if len(short) > maximumMessage || !utf8.ValidString(short) || len(message) <= maximumMessage && short != message {
			t.Errorf("%d bytes became %d", len(message), len(short))
		}
	}
}
