// Package sleep is the state machine that puts a cluster to sleep, and undoes that.
//
// It is pure: [Step] takes a [Machine] and an [Event], and returns the new Machine and the actions to carry out. It does not
// use goroutines, clients or clocks. Its driver carries out every [Action], returns each result as a [Completed], runs the
// timers of [Machine.Timers], and passes on every view of the Cluster and every observation of the instance. Every instance
// runs a Machine; only that of the primary enters the states on the right. "The switch" is the annotation cnpg.io/hibernation.
//
//	                     nothing speaks against sleep
//	  +----------> Awake -------------------------------> ListingBackups
//	  |             |  ^                                        | none runs
//	  |   schedules |  |                                        v
//	  |   may carry v  |                                    Announcing
//	  |   our mark  Resuming                                    | announced
//	  |                                                         v
//	  |                                                  AwaitingGateway
//	  | announcement removed                                    | acknowledged, or wake=manual
//	  |                     something speaks against sleep,     v
//	Retracting <----------- or an action failed             Suspending
//	  ^     |                                                   | schedules suspended
//	  |     | the switch is on after all                        v
//	  |     |                             |               AskingSiblings     sampled
//	  |     |                             |                     | idle
//	  |     |                             |                     v
//	  |     +-----------------------------+                 Confirming     Backups listed, Cluster read
//	  |                                   |                     | nothing speaks against sleep
//	  | the switch is off                 |                     v
//	Verifying <----------------+          |                  Sampling      this instance, last
//	  |       the answer       |          |                     | idle
//	  |       was lost         |          |                     v
//	  |                        +----------|---------------- Hibernating
//	  | the switch is on                  v                     | the switch is on
//	  +------------------------------> SwitchedOn <-------------+
//	                                   |   |  ^
//	  Awake <--- Withdrawing <---------+   |  | the Cluster has changed meanwhile
//	                 |     in use, or the  |  |
//	                 |     operator is away|  |
//	                 +---------------------|--+
//	                                       v the operator has begun
//	  Awake <------------------------- Asleep
//	            the switch is off
//
// # Guarantees
//
// The switch is turned on only after the gateway has acknowledged the announcement and then, in this order, the schedules were
// suspended, every sibling was sampled, the Backups were listed and the Cluster was read, and this instance was sampled, and
// nothing of that spoke against sleep. Anything that speaks against sleep on the way ends the attempt.
//
// An attempt is undone in this order: the announcement is removed, then the schedules are resumed. The patch that turns the
// switch on requires the resourceVersion of a state that contains the announcement. So once the announcement is gone, such a
// patch can only fail, even if its answer was lost and it is still in flight.
//
// The switch is turned off again only while this field manager alone owns it, the operator has deleted nothing, and the
// Cluster has not changed since it was read.
//
// # Failures
//
//   - After a lost answer, the action counts as neither done nor failed: the Cluster is read before anything is undone.
//   - After a restart, the phase is Starting and the Cluster determines how to continue. An announcement that a primary
//     finds is stale, since only the primary announces, and is removed. Schedules with our mark are resumed as soon as the
//     cluster is awake.
//   - Failing actions are repeated indefinitely, with increasing pauses.
//
// # Where to start reading
//
// The transcripts in testdata are complete handovers, event by event; start with on-time.txt (go test -update rewrites them).
// A test explores every state that the Machine can reach together with models of the API server, the operator, the gateway, a
// sibling, another primary, a person and clients, and asserts the guarantees in each (promises_test.go).
package sleep
