// Package sleep is the way to sleep and back, as a state machine.
//
// It is pure: [Step] takes a [Machine] and an [Event] and returns the Machine as it is then and the actions to carry out.
// It knows nothing of goroutines, clients or clocks. Whoever drives it carries out every [Action], gives what came of it
// back as a [Completed], runs the timers that [Machine.Timers] names, and passes on every view of the Cluster and every
// observation of the instance. Every instance runs a Machine; only that of the primary leaves the states on the right.
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
// # What it promises
//
// The switch is turned on only after the gateway has acknowledged the announcement, and after that: schedules were
// suspended, then every sibling sampled, the Backups listed and the Cluster read, and last this instance sampled, and none of
// them spoke against sleep. Whatever speaks against it on the way ends the attempt.
//
// What is undone is undone in this order: the announcement is removed, then the schedules are resumed. The patch that turns
// the switch on demands the resourceVersion of a state in which the announcement was there. So once the announcement is
// gone, a patch whose answer was lost, and that may still be on its way, can only fail.
//
// The switch is turned off again only while it is ours alone and the operator has deleted nothing, and only if the Cluster
// is as it was seen.
//
// # What failures do
//
//   - An answer that is lost is neither done nor failed: the Cluster is read before anything is undone.
//   - A restart begins in Starting: the Cluster says where to go on. An announcement that a primary finds is stale, since
//     only it announces, and is removed. Schedules that carry our mark are resumed as soon as the cluster is awake.
//   - Failing actions are repeated for as long as it takes, with a growing wait between them.
//
// # Where to begin reading
//
// The transcripts in testdata are whole handovers, event by event; on-time.txt is the first (go test -update writes them
// anew). The test explores every state that the Machine can reach together with models of the API server, the operator, the
// gateway, a sibling, another primary, a person and clients, and asserts these promises in each (promises_test.go).
package sleep
