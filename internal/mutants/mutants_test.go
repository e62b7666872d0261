// Package mutants reintroduces former and plausible defects, one at a time, and checks that a test notices each.
//
// Every defect is a replacement in one file, behind a condition that only the defect's own run makes true. All of them are
// compiled at once into one test binary of each package (go test -overlay), so that the tree is not modified.
package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mutant is a defect and the test that notices it.
type mutant struct {
	defect string
	// file has the text before exactly once; after replaces it. MUTANT in it is true if the defect is present.
	file, before, after string
	// pkg and test are the test that notices, and notice occurs in what it then says.
	pkg, test, notice string
}

// exploration explores every state of falling asleep and waking, and explorationOfDozes those of a cluster that dozes.
const (
	exploration        = "TestMachine_everyReachableState"
	explorationOfDozes = "TestMachine_everyReachableStateOfADoze"
	// explorationOfPairs explores those of two instances.
	explorationOfPairs = "TestMachine_everyReachableStateOfTwoInstances"
	// explorationOfDeadlines explores those of a cluster that hibernates together with what the plugin decides.
	explorationOfDeadlines = "TestMachine_everyReachableStateOfADeadline"
)

var mutants = []mutant{
	{
		"what the other instances saw before the acknowledgement suffices",
		"sidecar/sleep/attempt.go", `s.enter(AskingSiblings, AskSiblings)`,
		`if MUTANT { s.enter(Confirming, ListBackups, ReadCluster) } else { s.enter(AskingSiblings, AskSiblings) }`,
		"sidecar/sleep", exploration, "switched on, and not every instance was idle at its newest sample",
	},
	{
		"an answer that may be older than the request for a sample is taken",
		"sidecar/control/siblingclient.go", `report.Nonce != nonce`, `report.Nonce != nonce && !MUTANT`,
		"sidecar/control", "TestSiblingClient_wantsItsNonceBack", "FAIL: TestSiblingClient_wantsItsNonceBack/one_with_another_is_of_another_request",
	},
	{
		"only the primary ends its sessions that do not count",
		"sidecar/sleep/machine.go", `if s.view.OwnsHibernation && s.withdrawal == keep {`, `if s.view.OwnsHibernation && s.withdrawal == keep && (s.view.Primary || !MUTANT) {`,
		"sidecar/sleep", exploration, "the cluster falls asleep, and the sessions that do not count are not ended",
	},
	{
		"Backups are listed before the handover only",
		"sidecar/sleep/attempt.go", `s.enter(Confirming, ListBackups, ReadCluster)`,
		`if MUTANT { s.enter(Confirming, ReadCluster) } else { s.enter(Confirming, ListBackups, ReadCluster) }`,
		"sidecar/sleep", exploration, "switched on, and a Backup ran when they were last listed",
	},
	{
		"what another instance's server says against a shutdown is not used",
		"sidecar/control/siblings.go", `serverBlockers(report)...)`, `serverBlockers(report)...); if MUTANT { all.Blockers = nil }`,
		"sidecar/control", "TestLoop_asksTheOtherInstances", "FAIL: TestLoop_asksTheOtherInstances/the_server_of_one_says_something_against_a_shutdown",
	},
	{
		"an instance does not report what its server says",
		"sidecar/server/status.go", `report.ServerBlockers = words(status.ServerBlockers)`, `if !MUTANT { report.ServerBlockers = words(status.ServerBlockers) }`,
		"sidecar/server", "TestHandler_pagesAreGolden", "FAIL: TestHandler_pagesAreGolden",
	},
	{
		"a lost answer to the hibernation patch is taken for a failure",
		"sidecar/sleep/machine.go", `s.enter(Verifying, ReadCluster)`, `if MUTANT { s.do(RemoveMarker); s.fail(e) } else { s.enter(Verifying, ReadCluster) }`,
		"sidecar/control", "TestHandover_aLostAnswerToTheSwitchUndoesNothing", "a marker is left: false, want true",
	},
	{
		"schedules are resumed before the late patch is fenced off",
		"sidecar/sleep/machine.go", `case v.Primary && s.phase == Starting && v.held():`,
		`case MUTANT && s.resume != resumed && !s.resumeWaits && v.Primary && !v.NotReady: s.enter(Resuming, Resume)
		case v.Primary && s.phase == Starting && v.held():`,
		"sidecar/sleep", exploration, "switched on with an active schedule",
	},
	{
		"the sidecar resumes a schedule whose suspension another manager owns",
		"sidecar/kubernetes/backups.go", `s.Spec.Suspend && contract.SetByUs(`, `s.Spec.Suspend && MUTANT || s.Spec.Suspend && contract.SetByUs(`,
		"sidecar/kubernetes", "TestResumeBackups_leavesWhatIsNotOurs", "taken-over: suspend is false",
	},
	{
		"the plugin resumes a schedule whose suspension another manager owns",
		"plugin/fleet/backups.go", `schedule.IsSuspended() && contract.SetByUs(`, `schedule.IsSuspended() && MUTANT || schedule.IsSuspended() && contract.SetByUs(`,
		"plugin/fleet", "TestWhoResumes", "taken-over resumed: true, want false",
	},
	{
		"a gateway that has held clients since before the pod was made to leave its Services is believed",
		"sidecar/sleep/attempt.go", `(!s.view.permits(true) || s.held())`, `(!s.view.permits(true) || s.held() && !MUTANT)`,
		"sidecar/sleep", explorationOfDozes, "fenced although Services lead to the instance",
	},
	{
		"the pod is ready again although the fence's patch may be late",
		"sidecar/sleep/machine.go", `if s.setView(e.View); !s.applied() {`,
		`if MUTANT { s.restore() }
		if s.setView(e.View); !s.applied() {`,
		"sidecar/sleep", explorationOfDozes, "readiness is restored although PostgreSQL may still stop",
	},
	{
		"the marks are removed before it is known which PostgreSQL stays",
		"sidecar/sleep/undo.go", `(v.Announced != "" || s.restarted)`, `(v.Announced != "" || s.restarted && !MUTANT || v.DozeEnding && MUTANT)`,
		"sidecar/sleep", explorationOfDozes, "the marks are removed although PostgreSQL may still stop",
	},
	{
		"a pod that is not ready is left to the operator to hibernate",
		"sidecar/sleep/machine.go", `case !v.Fenced && (s.unready`, `case !(MUTANT && v.HibernationOn) && !v.Fenced && (s.unready`,
		"sidecar/sleep", explorationOfDozes, "nothing leads on from here",
	},
	{
		"an instance that is the primary again does not know that there was another",
		"sidecar/sleep/machine.go", `!v.PrimarySince.Equal(was.PrimarySince)`, `!MUTANT && !v.PrimarySince.Equal(was.PrimarySince)`,
		"sidecar/sleep", explorationOfPairs, "at rest, and schedules carry our mark",
	},
	{
		"the gateway leaves at the deadline although a late patch may still turn hibernation on",
		"plugin/wake/plan/route.go", `case change.IsZero() && !announcement.Doze &&`, `case !MUTANT && change.IsZero() && !announcement.Doze &&`,
		"sidecar/sleep", explorationOfDeadlines, "the cluster sleeps, and its Services do not lead to the gateway",
	},
	{
		"the gateway says that it holds every client while a Service leads to the instance",
		"plugin/wake/plan/route.go", `s.Direct || !s.Led`, `s.Direct && !MUTANT || !s.Led`,
		"sidecar/sleep", explorationOfDozes, "fenced although Services lead to the instance",
	},
	{
		"what may doze is fenced in an attempt to hibernate it",
		"sidecar/sleep/attempt.go", `s.phase == Sampling && s.doze`, `s.phase == Sampling && (s.doze && !MUTANT || s.view.MayDoze && MUTANT)`,
		"sidecar/sleep", explorationOfDozes, "the fence is asked for although",
	},
	{
		"a session whose end the kernel has ready is not in the sample",
		"sidecar/monitor/handle.go", `change.merge(m.Handle(Event{source: m.sockets.source}))`,
		`if !MUTANT { change.merge(m.Handle(Event{source: m.sockets.source})) }`,
		"sidecar/monitor", "TestSample_whatTheKernelHasReadyBelongsToIt", "FAIL: TestSample_whatTheKernelHasReadyBelongsToIt/a_session_that_ended",
	},
	{
		"a client that is logging in does not count",
		"sidecar/monitor/sample.go", `connecting := m.peers.connecting(sample, open)`, `connecting := !MUTANT && m.peers.connecting(sample, open)`,
		"sidecar/monitor", "TestSample_isNotIdleWhileSomebodyConnects", "FAIL: TestSample_isNotIdleWhileSomebodyConnects/a_client_that_is_logging_in",
	},
	{
		"a held client gets the answer of a PostgreSQL that starts or stops",
		"plugin/wake/gateway/route.go", `refused.Code == string(startup.CannotConnectNow)`, `!MUTANT && refused.Code == string(startup.CannotConnectNow)`,
		"plugin/wake/gateway", "TestAnInstanceThatDoesNotAcceptIsTriedAgain", "FAIL: TestAnInstanceThatDoesNotAcceptIsTriedAgain/it_says_that_it_starts",
	},
	{
		"one address that has taken every slot keeps other clusters out",
		"plugin/wake/gateway/limiter.go", `if *own == 0 && most > 0 || *own > 0 &&`, `if !MUTANT && *own == 0 && most > 0 || !MUTANT && *own > 0 &&`,
		"plugin/wake/gateway", "TestLimiter_promises", "FAIL: TestLimiter_promises/clusters_that_have_nothing_get_a_slot_each_although_they_share",
	},
	{
		"a wake is counted twice, or not at all, if the answer to its patch was lost",
		"plugin/wake/waker/wake.go", `if w.unconfirmed != "" &&`, `if !MUTANT && w.unconfirmed != "" &&`,
		"plugin/wake/waker", "TestResolve_countsAWakeWhoseAnswerWasLost", "FAIL: TestResolve_countsAWakeWhoseAnswerWasLost/",
	},
	{
		"the acknowledgement of an older announcement suffices",
		"plugin/wake/plan/route.go", `case cluster.Acknowledged != cluster.Announced:`, `case cluster.Acknowledged != cluster.Announced && (cluster.Acknowledged == "" || !MUTANT):`,
		"plugin/wake/plan", "TestRoutes", "FAIL: TestRoutes/an_older_acknowledgement_is_not_one_of_this_announcement",
	},
	{
		"a port is assigned to another Service as soon as its own has gone",
		"plugin/wake/ports/ledger.go", `now.Sub(e.freed) >= keptAfter`, `(MUTANT || now.Sub(e.freed) >= keptAfter)`,
		"plugin/wake/ports", "TestAssign", "FAIL: TestAssign/a_port_whose_Service_has_gone_rests",
	},
	{
		"a new image restarts every instance",
		"plugin/cnpgi/lifecycle.go", `case owner.updatesImmediately(l.AtOnce):`, `case MUTANT || owner.updatesImmediately(l.AtOnce):`,
		"plugin/cnpgi", "TestWhatRolls", "FAIL: TestWhatRolls/by_default_nothing_does",
	},
	{
		"a search that has seen the cluster before it was woken asks the budget",
		"plugin/wake/waker/queue.go", `of.woken == cluster.ResourceVersion`, `!MUTANT && of.woken == cluster.ResourceVersion`,
		"plugin/wake/waker", "TestMayWake_asksTheBudgetOnceForAWake", "507 wakes are left, want 508",
	},
	{
		"a wake does not time out while clients keep coming",
		"plugin/wake/waker/wake.go", `if now.Sub(cmp.Or(w.late, w.phases.began)) >= w.Limit {`, `if !MUTANT && now.Sub(cmp.Or(w.late, w.phases.began)) >= w.Limit {`,
		"plugin/wake/waker", "TestResolve_timesOutWhileClientsKeepComing", "the results are",
	},
	{
		"a client waits for passwords long after the wake",
		"plugin/wake/waker/secrets.go", `lately := now.Sub(woken)`, `lately := MUTANT || now.Sub(woken)`,
		"plugin/wake/waker", "TestResolve_waitsForNoPasswordLongAfterTheWake", "the client was held for",
	},
	{
		"a wake of before the sleep is measured",
		"plugin/wake/plan/wake.go", `wake.At.Before(p.Memory.asleepSince)`, `!MUTANT && wake.At.Before(p.Memory.asleepSince)`,
		"plugin/wake/plan", "TestDecide_measuresTheLastWake", "which a person has ended: 8s",
	},
	{
		"a wake that times out is counted at each Service",
		"plugin/metrics/wake.go", `if now.Sub(counts.last) < w.timeout {`, `if !MUTANT && now.Sub(counts.last) < w.timeout {`,
		"plugin/metrics", "TestClusterWakes_countATimeoutOnce", "wakes timed out, want 2",
	},
	{
		"what the server did for a client ends with the last sample that found it",
		"sidecar/idle/decide.go", `|| s.Blocked && !blocked:`, `|| s.Blocked && !blocked && !MUTANT:`,
		"sidecar/idle", "TestDecide_transcriptsAreGolden", "FAIL: TestDecide_transcriptsAreGolden/blocked-until.txt",
	},
	{
		"keep-awake does not cancel a request to sleep",
		"sidecar/idle/decide.go", `|| !s.Requested.After(s.CancelledAt) {`, `|| !MUTANT && !s.Requested.After(s.CancelledAt) {`,
		"sidecar/idle", "TestDecide_transcriptsAreGolden", "FAIL: TestDecide_transcriptsAreGolden/request.txt",
	},
	{
		"a sample is not repeated for a session that ends meanwhile",
		"sidecar/monitor/sample.go", `ended := !change.Used.IsZero()`, `ended := !MUTANT && !change.Used.IsZero()`,
		"sidecar/monitor", "TestSample_isRepeatedForASessionThatEndsMeanwhile", "the next sample is due at",
	},
	{
		"since when a cluster dozes is by the node's clock",
		"sidecar/control/actions.go", `o.at = l.cluster.clock.at(o.at) // as for hibernation`, `if !MUTANT { o.at = l.cluster.clock.at(o.at) }`,
		"sidecar/control", "TestDoze_isTimedByTheClockOfTheAPIServer", "it dozes since",
	},
	{
		"a request to stay awake that arrives in a sample is not written after it",
		"sidecar/control/decide.go", `l.run(ctx, l.cluster.persistKeepAwake(l.status.View)) // after`, `if !MUTANT { l.run(ctx, l.cluster.persistKeepAwake(l.status.View)) } // after`,
		"sidecar/control", "TestDrive_keepAwakeIsWrittenAfterTheSampleThatItArrivesIn", "FAIL: TestDrive_keepAwakeIsWrittenAfterTheSampleThatItArrivesIn",
	},
}

func TestMutants_areNoticed(t *testing.T) {
	t.Parallel()
	root, binaries := filepath.Join("..", ".."), t.TempDir()
	compile(t, root, binaries)
	for _, m := range mutants {
		t.Run(m.defect, func(t *testing.T) {
			t.Parallel()
			command := exec.CommandContext(t.Context(), filepath.Join(binaries, filepath.Base(m.pkg)+".test"), "-test.run", "^"+m.test+"$")
			command.Dir, command.Env = filepath.Join(root, m.pkg), append(os.Environ(), "MUTANT="+m.defect)
			out, err := command.CombinedOutput()
			if err == nil {
				t.Fatalf("%s passes with the defect in", m.test)
			}
			if !strings.Contains(string(out), m.notice) {
				t.Fatalf("%s does not say %q, but (%v):\n%s", m.test, m.notice, err, out)
			}
		})
	}
}

// compile writes a test binary of each package, all defects included, to a directory.
func compile(t *testing.T, root, binaries string) {
	t.Helper()
	replace, byFile, packages := map[string]string{}, map[string][]string{}, []string{}
	overlay := func(name, content string) {
		path, err := filepath.Abs(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		replace[path] = filepath.Join(t.TempDir(), filepath.Base(name))
		if err := os.WriteFile(replace[path], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range mutants {
		byFile[m.file] = append(byFile[m.file], m.before, strings.ReplaceAll(m.after, "MUTANT", fmt.Sprintf("(mutant == %q)", m.defect)))
		packages = append(packages, "./"+m.pkg)
	}
	for file, changes := range byFile {
		original, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(changes); i += 2 {
			if n := strings.Count(string(original), changes[i]); n != 1 {
				t.Fatalf("%s has %q %d times, want once: bring the mutant up to date", file, changes[i], n)
			}
		}
		overlay(file, strings.NewReplacer(changes...).Replace(string(original)))
		_, clause, _ := strings.Cut("\n"+string(original), "\npackage ")
		name, _, _ := strings.Cut(clause, "\n")
		overlay(filepath.Join(filepath.Dir(file), "mutant.go"), "package "+name+"\n\nimport \"os\"\n\nvar mutant = os.Getenv(\"MUTANT\")\n")
	}
	encoded, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(binaries, "overlay.json")
	if err := os.WriteFile(overlayFile, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	slices.Sort(packages)
	arguments := append([]string{"test", "-c", "-vet=off", "-overlay", overlayFile, "-o", binaries + "/"}, slices.Compact(packages)...)
	command := exec.CommandContext(t.Context(), "go", arguments...)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("compile the packages with the defects in: %v\n%s", err, out)
	}
}
