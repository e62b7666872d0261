package waker

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// longestBackoff limits the wait of a client whose source has caused an unused wake.
	longestBackoff = 5 * time.Minute
	// patience is how long a client stays that is no scanner.
	patience = 4 * time.Second
)

// errQueued means that none of the clients may wake the cluster yet.
var errQueued = errors.New("the wake waits for the budget")

// Why a wake waits.
const (
	whyBudget = "the addresses of its clients have used up their budget of wakes"
	whyUnused = "no session used the last wake from the addresses of its clients, or only ignored sessions did"
)

// queue is the state of a wake that waits for the budget.
type queue struct {
	// why it waits; "" if it does not wait.
	why string
	// granted is set once this search may wake the cluster. It uses one wake of the budget, however many attempts it
	// needs.
	granted bool
	// asked are the sources for which the budget was asked.
	asked map[netip.Addr]bool
}

// ongoing is what the searches of one cluster have in common: a wake uses the budget once, through however many Services
// its clients come.
type ongoing struct {
	searches int    // that are running
	granted  int    // of them, those that may wake the cluster
	woken    string // the resourceVersion from which one of them woke it, which another may still have
}

// mayWake returns a client that may wake the cluster now. It asks for one client of each address, so that none waits
// because of another's budget or unused wake. Its errors are errQueued and errNobodyWaits.
func (w *wake) mayWake(cluster *cnpgv1.Cluster, now time.Time) (waiting, error) {
	clients := w.searches.clients(w.service.UID)
	if len(clients) == 0 {
		return waiting{}, errNobodyWaits
	}
	if w.queue.granted {
		return waiting{w.client, w.since}, nil
	}
	if w.depth == DepthDoze { // this creates no pod, so the budget does not apply
		return clients[0], nil
	}
	why, granted := whyUnused, false
	for _, client := range clients {
		if now.Before(notBefore(cluster, client)) {
			continue
		}
		source := gateway.SourceOf(client.Peer.Addr())
		w.ongoing.Change(clusterOf(w.service), func(of *ongoing) bool {
			if granted = of.granted != 0 || of.woken == cluster.ResourceVersion || w.Budget.Take(source, clusterOf(w.service), now); granted {
				of.granted++
			}
			return true
		})
		if granted {
			w.leaveQueue()
			w.queue.granted = true
			return client, nil
		}
		if w.queue.asked == nil {
			w.queue.asked = map[netip.Addr]bool{}
		}
		w.queue.asked[source], why = true, whyBudget
	}
	if w.queue.why == "" {
		w.Observer.Queued(1)
		w.Logger.Warn("a wake waits", "namespace", w.service.Namespace, "cluster", w.service.Cluster, "service", w.service.Name,
			"peer", w.client.Peer, "why", why)
		w.warn("WakeQueued", fmt.Sprintf(
			"The wake for %s through Service %s waits: %s", whoIs(w.client), w.service.Name, why))
	}
	w.queue.why = why
	return waiting{}, errQueued
}

// leaveQueue withdraws all requests, when the search may wake the cluster or ends.
func (w *wake) leaveQueue() {
	if w.queue.granted {
		w.ongoing.Change(clusterOf(w.service), func(of *ongoing) bool { of.granted--; return true })
	}
	for source := range w.queue.asked {
		w.Budget.Leave(source, clusterOf(w.service))
	}
	if w.queue.why != "" {
		w.Observer.Queued(-1)
	}
	w.queue = queue{}
}

// notBefore returns when the client may wake the cluster. If the last wake came from its source and was not used, it
// must wait for as long as the cluster was up, twice as long after each further such wake, and at most longestBackoff.
// Many clients may share a source, so one that stays for some seconds need not wait longer: who has not used a wake
// left before it was served. A client whose session is ignored does stay.
func notBefore(cluster *cnpgv1.Cluster, client waiting) time.Time {
	last, asleep, ok := unusedWake(cluster, client.Client)
	if !ok {
		return time.Time{}
	}
	backoff := asleep.Sub(last.At)
	for i := 0; i < last.Unused && backoff < longestBackoff; i++ {
		backoff = max(2*backoff, time.Second)
	}
	until := asleep.Add(min(backoff, longestBackoff))
	if stayed := client.since.Add(patience); stayed.Before(until) && !strings.HasSuffix(cluster.Annotations[contract.AnnotationAsleepReason], contract.AsleepReasonIgnoredSuffix) {
		return stayed
	}
	return until
}

// unusedWake returns the last wake, and when the cluster fell asleep after it, if that wake was not used and came from
// the client's source. Users whose names are visible are told apart.
func unusedWake(cluster *cnpgv1.Cluster, client gateway.Client) (last contract.LastWake, asleep time.Time, ok bool) {
	if !strings.HasPrefix(cluster.Annotations[contract.AnnotationAsleepReason], contract.AsleepReasonUnusedPrefix) {
		return last, asleep, false
	}
	last, err := contract.ParseLastWake(cluster.Annotations[contract.AnnotationLastWake])
	if err != nil {
		return last, asleep, false
	}
	by, err := netip.ParseAddr(last.By)
	if err != nil || gateway.SourceOf(by) != gateway.SourceOf(client.Peer.Addr()) || last.User != "" && client.User != "" && last.User != contract.ShortName(client.User) {
		return last, asleep, false
	}
	asleep, err = time.Parse(time.RFC3339, cluster.Annotations[contract.AnnotationAsleepSince])
	return last, asleep, err == nil && !asleep.Before(last.At)
}
