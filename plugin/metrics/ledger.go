package metrics

import (
	"maps"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// ledger accumulates how long the clusters sleep and doze, and the resources that they do not request while they sleep.
// A doze counts as no saving, even if it lowers the pod's requests.
//
// It counts from zero what this process has seen. Starting at the age of the current sleep would look better after a
// restart, but be wrong: Prometheus treats a counter that decreased as reset, and would count that sleep's past twice.
// For the same reason nothing is guessed: between two scrapes, a cluster slept from the start of its current sleep
// according to the operator's condition, and a sleep that ended between them counts only up to the first. When a sleep
// began is a separate gauge.
type ledger struct {
	began    time.Time
	accounts map[key]*account
	booked   map[key]bool // since the last close
}

func newLedger(began time.Time) ledger {
	return ledger{began: began, accounts: map[key]*account{}, booked: map[key]bool{}}
}

// key distinguishes clusters that had the same name one after the other.
type key struct {
	uid  types.UID
	name types.NamespacedName
}

// account holds the totals of one cluster: slept and dozed in seconds, cpu in core-seconds, memory in byte-seconds.
type account struct {
	slept, dozed, cpu, memory float64
	requests                  plan.Requests
	// sidecarCPU and sidecarMemory are what its sidecars requested while it was awake.
	sidecarCPU, sidecarMemory float64
	until                     time.Time
	awake                     bool // when it was last booked
}

// book brings the cluster's account up to now. dozing is since when it dozes; zero if it does not. sidecars is what its
// sidecars request while it is awake.
func (l *ledger) book(cluster *cnpgv1.Cluster, dozing time.Time, sidecars plan.Requests, now time.Time) *account {
	of := key{cluster.UID, types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}}
	a, known := l.accounts[of]
	if !known {
		a = &account{until: l.began}
		l.accounts[of] = a
	}
	l.booked[of] = true
	a.requests = plan.RequestsOf(cluster)
	since, asleep := asleepSince(cluster)
	a.bookSidecars(sidecars, since, asleep, now)
	if asleep {
		slept := a.unbooked(since, now)
		a.slept += slept
		a.cpu += slept * a.requests.CPU
		a.memory += slept * a.requests.Memory
	}
	if !dozing.IsZero() {
		a.dozed += a.unbooked(dozing, now)
	}
	a.until = now
	return a
}

// unbooked returns how many seconds have passed since then that have not been booked. The time is from another clock.
func (a *account) unbooked(since, now time.Time) float64 {
	if since.Before(a.until) {
		since = a.until
	}
	return max(now.Sub(since).Seconds(), 0)
}

// bookSidecars counts the time from one observation of the cluster awake to the next, or to the start of its sleep.
func (a *account) bookSidecars(sidecars plan.Requests, since time.Time, asleep bool, now time.Time) {
	until := now
	if asleep && since.Before(now) {
		until = since
	}
	if awake := until.Sub(a.until).Seconds(); a.awake && awake > 0 {
		a.sidecarCPU += awake * sidecars.CPU
		a.sidecarMemory += awake * sidecars.Memory
	}
	a.awake = !asleep
}

// close removes the accounts of clusters that were not booked.
func (l *ledger) close() {
	maps.DeleteFunc(l.accounts, func(of key, _ *account) bool { return !l.booked[of] })
	clear(l.booked)
}

// asleepSince returns since when the cluster has had no pods. It uses the time of the operator's condition: our
// annotation is older by the duration of the shutdown, and missing if a person put the cluster to sleep.
func asleepSince(cluster *cnpgv1.Cluster) (time.Time, bool) {
	condition := meta.FindStatusCondition(cluster.Status.Conditions, contract.ConditionHibernation)
	if condition == nil || condition.Status != metav1.ConditionTrue || condition.LastTransitionTime.IsZero() {
		return time.Time{}, false
	}
	return condition.LastTransitionTime.Time, true
}
