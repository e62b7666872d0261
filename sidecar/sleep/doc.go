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
// # Dozes
//
// A cluster of one instance may doze before it hibernates: the instance is fenced, so that its instance manager stops PostgreSQL
// and keeps the pod. A fence stops PostgreSQL at once, whoever uses it, so nobody may be passed to it by then. An attempt to doze
// therefore takes two more steps: Preparing, after ListingBackups, makes the stop short; LeavingServices, after AskingSiblings,
// makes the pod not ready and waits until no Service leads to it and the gateway holds every client that comes. The patch at
// its end is not the switch but the fence.
//
//	Hibernating
//	     | fenced
//	     v            stopped, and recorded               time to hibernate
//	 Stopping ----------------------------------> Dozing -------------------> ListingBackups, Hibernating, and on
//	  |    |                                       |  |                             |      as above, still fenced
//	  |    | ignored, in use,                      |  | unhealthy,                  |
//	  |    | or not to doze any more               |  | or not to doze any more     | a Backup runs
//	  |    +-------------> Unfencing <-------------|--+-----------------------------+
//	  |                        | lifted            |
//	  | unfenced by a person   v                   | unfenced by a client or a person
//	  +-------------------> Restarting <-----------+
//	                           | PostgreSQL serves, and no fence will stop it: the pod is ready again
//	                           v
//	              Retracting, Resuming, Awake: the marks are removed, the schedules resumed
//
// A wake goes on wherever it began: the gateway lifts the fence once the stop is recorded, and the sidecar sees that. A fence that
// was lifted before may still stop PostgreSQL; the mark of a doze without a record of the stop tells the gateway to hold until
// the sidecar knows which PostgreSQL stays.
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
// The fence is put only while the gateway holds every client for the announcement, the pod is kept from being ready since before
// that, PostgreSQL is prepared, and the same questions as before the switch were answered since. The pod is made ready again only
// when no fence of ours can stop PostgreSQL any more: at once when an attempt ends before its fence was asked for, and otherwise
// after the announcement is gone, so that a late fence can only fail, and once a PostgreSQL serves that stays. A fence that is
// not ours is never lifted.
//
// # Failures
//
//   - After a lost answer, the action counts as neither done nor failed: the Cluster is read before anything is undone.
//   - After a restart, the phase is Starting and the Cluster determines how to continue. An announcement that a primary
//     finds is stale, since only the primary announces, and is removed. Schedules with our mark are resumed as soon as the
//     cluster is awake. If a doze has left its mark and the fence is gone, the pod is kept from being ready until the PostgreSQL
//     that stays serves.
//   - An instance manager that does not stop PostgreSQL is noticed after some seconds, and the fence lifted.
//   - Failing actions are repeated indefinitely, with increasing pauses.
//
// # Where to start reading
//
// The transcripts in testdata are complete handovers, event by event; start with on-time.txt and doze.txt (go test -update rewrites
// them). A test explores every state that the Machine can reach together with models of the API server, the operator, the gateway,
// a sibling, another primary, a person and clients, and asserts the guarantees in each (promises_test.go). Another one does so for
// a cluster of one instance that dozes, with models of the instance manager and the kubelet too (doze_promises_test.go).
package sleep
