// Package mutants reverts the fixes of former defects, one at a time, and checks that a test notices.
//
// Each patch under testdata reintroduces a defect, or introduces a plausible one. It is applied to copies of the files that it
// names, which replace the originals in one run of one test (go test -overlay), so that the tree is not modified.
package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMutants_areNoticed(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	for _, row := range []struct {
		defect, patch, pkg, test string
		// notice must occur in the test's output.
		notice string
	}{
		{
			"S1: what the other instances saw before the acknowledgement suffices", "s1-siblings-not-sampled", "sidecar/sleep",
			exploration, "switched on, and not every instance was idle at its newest sample",
		},
		{
			"S1: an answer that may be older than the request for a sample is taken", "s1-no-nonce", "sidecar/siblings",
			"TestSample_wantsItsNonceBack", "FAIL: TestSample_wantsItsNonceBack/one_with_another_is_of_another_request",
		},
		{
			"S2: only the primary ends its sessions that do not count", "s2-primary-alone-ends-sessions", "sidecar/sleep",
			exploration, "the cluster falls asleep, and the sessions that do not count are not ended",
		},
		{
			"S4: Backups are listed before the handover only", "s4-backups-not-listed-again", "sidecar/sleep",
			exploration, "switched on, and a Backup ran when they were last listed",
		},
		{
			"S7: what another instance's server says against a shutdown is not used", "s7-blockers-not-used", "sidecar/control",
			"TestLoop_asksTheOtherInstances", "FAIL: TestLoop_asksTheOtherInstances/the_server_of_one_says_something_against_a_shutdown",
		},
		{
			"S7: an instance does not report what its server says", "s7-blockers-not-reported", "sidecar/server",
			"TestHandler_pagesAreGolden", "FAIL: TestHandler_pagesAreGolden",
		},
		{
			"S8: a lost answer to the hibernation patch is taken for a failure", "s8-lost-is-failed", "sidecar/control",
			"TestHandover_aLostAnswerToTheSwitchUndoesNothing", "a marker is left: false, want true",
		},
		{
			"S8: schedules are resumed before the late patch is fenced off", "s8-resume-before-fence", "sidecar/sleep",
			exploration, "switched on with an active schedule",
		},
		{
			"S9: the sidecar resumes a schedule whose suspension somebody else owns", "s9-sidecar-resumes", "sidecar/kubernetes",
			"TestResumeBackups_leavesWhatIsNotOurs", "taken-over: suspend is false",
		},
		{
			"S9: the plugin resumes a schedule whose suspension somebody else owns", "s9-plugin-resumes", "plugin/backups",
			"TestWhoResumes", "taken-over resumed: true, want false",
		},
		{
			"doze: a gateway that holds since before the pod was made to leave its Services is believed", "d1-held-early", "sidecar/sleep",
			explorationOfDozes, "fenced although Services lead to the instance",
		},
		{
			"doze: the pod is ready again although the fence's patch may be late", "d2-ready-before-late-fence", "sidecar/sleep",
			explorationOfDozes, "readiness is restored although PostgreSQL may still stop",
		},
		{
			"doze: the marks are removed before it is known which PostgreSQL stays", "d3-marks-removed-before-serving", "sidecar/sleep",
			explorationOfDozes, "the marks are removed although PostgreSQL may still stop",
		},
		{
			"doze: a pod that is not ready is left to the operator to hibernate", "d4-hibernated-before-serving", "sidecar/sleep",
			explorationOfDozes, "nothing leads on from here",
		},
		{
			"doze: what may doze is fenced in an attempt to hibernate it", "d5-fences-what-may-hibernate-only", "sidecar/sleep",
			explorationOfDozes, "the fence is asked for although",
		},
		{
			"a session whose end the kernel has ready is not in the sample", "kernel-queue-not-read", "sidecar/monitor",
			"TestSample_whatTheKernelHasReadyBelongsToIt", "FAIL: TestSample_whatTheKernelHasReadyBelongsToIt/a_session_that_ended",
		},
		{
			"a client that is logging in is taken for nobody", "connecting-not-examined", "sidecar/monitor",
			"TestSample_isNotIdleWhileSomebodyConnects", "FAIL: TestSample_isNotIdleWhileSomebodyConnects/a_client_that_is_logging_in",
		},
	} {
		t.Run(row.defect, func(t *testing.T) {
			t.Parallel()
			patch, err := os.ReadFile(filepath.Join("testdata", row.patch+".patch"))
			if err != nil {
				t.Fatal(err)
			}
			overlay, err := overlayOf(t.TempDir(), root, string(patch))
			if err != nil {
				t.Fatalf("the patch must be brought up to date: %v", err)
			}
			command := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", overlay, "-run", "^"+row.test+"$", "./"+row.pkg)
			command.Dir = root
			out, err := command.CombinedOutput()
			if err == nil {
				t.Fatalf("%s passes with the defect in", row.test)
			}
			if !strings.Contains(string(out), row.notice) {
				t.Fatalf("%s does not say %q, but (%v):\n%s", row.test, row.notice, err, out)
			}
		})
	}
}

// exploration is the test that explores every state of falling asleep and waking.
const exploration = "TestMachine_everyReachableState"

// explorationOfDozes is the one that does so for a cluster of one instance that dozes.
const explorationOfDozes = "TestMachine_everyReachableStateOfADoze"

// moduleRoot returns the directory of the module.
func moduleRoot(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("find the module: %v", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// overlayOf writes patched copies of the files that a patch names, and an overlay file for the go command that replaces the
// originals with them. It returns the path of the overlay file.
func overlayOf(dir, root, patch string) (string, error) {
	files, err := parsePatch(patch)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, hunks := range files {
		original := filepath.Join(root, filepath.FromSlash(name))
		text, err := os.ReadFile(original)
		if err != nil {
			return "", fmt.Errorf("read the original: %w", err)
		}
		patched, err := applyHunks(string(text), hunks)
		if err != nil {
			return "", fmt.Errorf("patch %s: %w", name, err)
		}
		replace[original] = filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(replace[original], []byte(patched), 0o600); err != nil {
			return "", fmt.Errorf("write the patched file: %w", err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return path, nil
}
