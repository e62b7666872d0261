package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// noon is when the tests act.
var noon = time.Date(2026, time.March, 2, 13, 0, 0, 0, time.FixedZone("CET", 3600))

func scheduledBackup(name, cluster, suspend, annotations string) string {
	return fmt.Sprintf(`{"metadata": {"name": %q, "annotations": {%s}}, "spec": {"cluster": {"name": %q}, "schedule": "0 0 0 * * *", "suspend": %s}}`,
		name, annotations, cluster, suspend)
}

const marked = `"xata.io/scale-to-zero-suspended": "2026-03-02T12:00:00Z"`

// stocked is an API server with the objects that the transcripts are about.
func stocked(t *testing.T) *api {
	a := newAPI()
	a.put(t, clusters, clusterWith())
	a.put(t, schedules, scheduledBackup("of-a-person", "blue", "true", ""))
	a.put(t, schedules, scheduledBackup("nightly", "blue", "false", ""))
	a.put(t, schedules, scheduledBackup("of-another", "red", "false", ""))
	a.put(t, schedules, scheduledBackup("ours", "blue", "true", marked))
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

func TestRequestsAreGolden(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, file string
		act        func(ctx context.Context, c *Client) error
	}{
		{"reading the Cluster names it", "get", func(ctx context.Context, c *Client) error {
			_, err := c.Get(ctx)
			return err
		}},
		{"the switch and its markers are one patch with a precondition", "hibernate", func(ctx context.Context, c *Client) error {
			return c.Hibernate(ctx, View{ResourceVersion: "1"}, noon, "idle since noon")
		}},
		{"only what is not suspended is suspended, and marked in the same patch", "suspend", func(ctx context.Context, c *Client) error {
			changed, err := c.SuspendBackups(ctx, noon)
			return wantChanged(changed, 2, err)
		}},
		{"only what is marked is resumed, and a person's choice is kept", "resume", func(ctx context.Context, c *Client) error {
			changed, err := c.ResumeBackups(ctx)
			return wantChanged(changed, 2, err)
		}},
		{"Backups are read in pages", "backups", func(ctx context.Context, c *Client) error {
			_, err := c.RunningBackups(ctx)
			return err
		}},
		{"an Event is about the Cluster", "event", func(ctx context.Context, c *Client) error {
			c.Record(ctx, View{Name: "blue", UID: "0f0e", ResourceVersion: "7"}, Event{Type: EventNormal, Reason: "Hibernated", Message: "Put to sleep"}, noon)
			return nil
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

func TestSuspendAndResumeLeaveWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, a)
	if _, err := c.SuspendBackups(t.Context(), noon); err != nil {
		t.Fatal(err)
	}
	// A person resumes one while the cluster sleeps: the mark goes, the choice stays.
	a.put(t, schedules, scheduledBackup("ours", "blue", "false", marked))
	if _, err := c.ResumeBackups(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"of-a-person": true, "nightly": false, "of-another": false, "ours": false, "resumed-by-a-person": false}
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
	if changed, err := c.ResumeBackups(t.Context()); changed != 0 || err != nil {
		t.Errorf("resumed again: %d, %v", changed, err)
	}
}

func TestOneScheduleThatFailsDoesNotKeepTheOthers(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, a)
	inner := c.http.Transport
	c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/nightly") {
			a.put(t, schedules, scheduledBackup("nightly", "blue", "false", `"changed": "meanwhile"`))
		}
		return inner.RoundTrip(r)
	})
	changed, err := c.SuspendBackups(t.Context(), noon)
	if changed != 1 || !errors.Is(err, ErrConflict) {
		t.Errorf("changed %d, error %v", changed, err)
	}
}

// tripper is a transport made of a function.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestHibernateFailsOnAClusterThatChanged(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, a)
	v, err := c.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.put(t, clusters, clusterWith("annotations", `, "xata.io/scale-to-zero-inactivity-minutes": "60"`))
	if err := c.Hibernate(t.Context(), v, noon, "idle"); !errors.Is(err, ErrConflict) {
		t.Errorf("error: %v", err)
	}
	if v, err = c.Get(t.Context()); err != nil || v.Hibernating {
		t.Errorf("hibernating %t, error %v", v.Hibernating, err)
	}
	if err := c.Hibernate(t.Context(), v, noon, "idle"); err != nil {
		t.Error(err)
	}
	if v, err = c.Get(t.Context()); err != nil || !v.Hibernating {
		t.Errorf("hibernating %t, error %v", v.Hibernating, err)
	}
}

func TestNothingIsPatchedWithoutAPrecondition(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	if err := connect(t, a).Hibernate(t.Context(), View{}, noon, "idle"); !errors.Is(err, errNoVersion) {
		t.Errorf("error: %v", err)
	}
	a.with(func() {
		if len(a.requests) != 0 {
			t.Errorf("requests: %v", a.requests)
		}
	})
}

func TestRunningBackups(t *testing.T) {
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

func TestRunningBackupsReadsEveryPage(t *testing.T) {
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

func TestGetNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, want string
		handler    http.HandlerFunc
	}{
		{"a Cluster that is not there", errAbsent.Error(), newAPI().ServeHTTP},
		{"the API server says why", "answers 403: clusters is forbidden", func(w http.ResponseWriter, _ *http.Request) {
			status(w, http.StatusForbidden, "Forbidden", "clusters is forbidden")
		}},
		{"a proxy says nothing that we read", "answers 502: Bad Gateway", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>", http.StatusBadGateway)
		}},
		{"a redirect is not followed: it would carry the token away", "answers 302: Found", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}},
		{"an answer that is no JSON", "decode the Cluster", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }},
		{"an answer without end", "it is longer than", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, maximumAnswer+1))
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			_, err := connect(t, row.handler).Get(t.Context())
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
}

func TestEventThatCannotBeWrittenIsLoggedOnly(t *testing.T) {
	t.Parallel()
	var output strings.Builder
	c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status(w, http.StatusForbidden, "Forbidden", "events is forbidden")
	}))
	c.logger = slog.New(slog.NewJSONHandler(&output, nil))
	c.Record(t.Context(), View{}, Event{Type: EventWarning, Reason: "InvalidAnnotation", Message: "…"}, noon)
	if got := output.String(); !strings.Contains(got, "events is forbidden") || !strings.Contains(got, "InvalidAnnotation") {
		t.Errorf("log: %s", got)
	}
}

func TestLongMessageIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for length := maximumMessage - 3; length < maximumMessage+4; length++ {
		message := strings.Repeat("a", length%3) + strings.Repeat("ü", length/2)
		short := shorten(message)
		if len(short) > maximumMessage || !utf8.ValidString(short) || len(message) <= maximumMessage && short != message {
			t.Errorf("%d bytes became %d", len(message), len(short))
		}
	}
}

// FuzzDecodePage holds that no answer makes the decoders of Backups and ScheduledBackups panic, and that what is left to
// do with a ScheduledBackup never touches another cluster's, or one that a person suspended.
func FuzzDecodePage(f *testing.F) {
	for _, seed := range []string{
		`{"items": [` + scheduledBackup("ours", "blue", "true", marked) + `], "metadata": {"continue": "x"}}`,
		`{"items": [{"metadata": {"name": "b"}, "spec": {"cluster": {"name": "blue"}}, "status": {"phase": "running"}}]}`,
		`{"items": [null]}`, `null`, `{"items": {}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		running, _, err := decodePage(body, func(b *backup) bool { return b.running("blue") })
		if err != nil && running != nil {
			t.Error("an error came with Backups")
		}
		own, _, _ := decodePage(body, func(s *schedule) bool { return s.Spec.Cluster.Name == "blue" })
		for i := range own {
			suspend, resume := own[i].suspend("now"), own[i].resume()
			if own[i].Spec.Cluster.Name != "blue" || own[i].Spec.Suspend && suspend != nil {
				t.Errorf("%+v would be suspended", own[i])
			}
			if _, ours := own[i].Metadata.Annotations["xata.io/scale-to-zero-suspended"]; !ours && resume != nil {
				t.Errorf("%+v would be resumed", own[i])
			}
		}
	})
}
