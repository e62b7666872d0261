// Package doze is what an instance does in its own pod so that its cluster may doze. Package sleep decides when.
//
// # The fence
//
// [Observer] observes whether CloudNativePG's instance manager has obeyed a fence, the annotation by which PostgreSQL
// is stopped and its pod kept. The instance manager obeys late: after other work, and for 25 seconds after a fence was
// lifted not at all. Once it has begun to stop PostgreSQL it continues, even if the fence is lifted meanwhile, and
// until the end PostgreSQL accepts sessions that will be cut. So neither the annotation nor PostgreSQL's answers show
// whether a session will last. Two things do, and need no login: the lock file of PostgreSQL's socket identifies the
// postmaster, and the instance manager says whether it expects it to be down.
//
// # The requests
//
// [Resizer] lowers the resource requests of PostgreSQL's container during a doze, and raises them again. It changes
// only requests, in place, and never limits: with lower ones PostgreSQL might not start. The original requests are in
// the annotation cnpg.io/podSpec, which the operator writes, so they need not be stored.
//
// # Where to start reading
//
// rules.go decides, without a clock, from what the observer has seen; requests.go decides what the resizer sets.
//
// The third part, the readiness by which the pod leaves its Services, is in package process: the supervisor serves it,
// and that small program must not link what talks to the API server.
package doze
