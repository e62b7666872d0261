// Package doze is what an instance does in its own pod so that its cluster may doze. Package sleep decides when.
//
// [Observer] observes whether CloudNativePG's instance manager has obeyed a fence, the annotation by which PostgreSQL is stopped and
// its pod kept. The instance manager obeys late: after other work, and for 25 seconds after a fence was lifted not at all. Once it has
// begun to stop PostgreSQL it goes on, even if the fence is lifted meanwhile, and until the end PostgreSQL accepts sessions that will
// be cut. So neither the annotation nor PostgreSQL's answers show whether a session will last. Two things do, and need no login: the
// lock file of PostgreSQL's socket identifies the postmaster, and the instance manager says whether it expects it to be down.
//
// # Where to start reading
//
// rules.go decides, without a clock, what observer.go has observed.
package doze
