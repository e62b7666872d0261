// Package sleep is the state machine that puts a cluster to sleep, and undoes that.
//
// It is pure: [Step] takes a [Machine] and an [Event], and returns the new Machine and the actions to carry out. It
// does not use goroutines, clients or clocks. Its driver carries out every [Action], returns each result as a
// [Completed], runs the timers of [Machine.Timers], and passes on every view of the Cluster and every observation of
// the instance. Every instance runs a Machine; only that of the primary enters the states on the right. Hibernation is
// on if the annotation cnpg.io/hibernation says so.
//
//	                     nothing blocks sleep
//	  +----------> Awake -------------------------------> ListingBackups
//	  |             |  ^                                        | none runs
//	  |   schedules |  |                                        v
//	  |   may carry v  |                                    Announcing
//	  |   our mark  Resuming                                    | announced
//	  |                                                         v
//	  |                                                  AwaitingGateway
//	  | announcement removed                                    | acknowledged, or wake=manual
//	  |                     something blocks sleep,             v
//	Retracting <----------- or an action failed             Suspending
//	  ^     |                                                   | schedules suspended
//	  |     | hibernation is on after all                       v
//	  |     |                             |               AskingSiblings     sampled
//	  |     |                             |                     | idle
//	  |     |                             |                     v
//	  |     +-----------------------------+                 Confirming     Backups listed, Cluster read
//	  |                                   |                     | nothing blocks sleep
//	  | hibernation is off                |                     v
//	Verifying <----------------+          |                  Sampling      this instance, last
//	  |       the answer       |          |                     | idle
//	  |       was lost         |          |                     v
//	  |                        +----------|---------------- Hibernating
//	  | hibernation is on                 v                     | hibernation is on
//	  +------------------------------> HibernationOn <----------+
//	                                   |   |  ^
//	  Awake <--- Withdrawing <---------+   |  | the Cluster has changed meanwhile
//	                 |     in use, or the  |  |
//	                 |     operator is away|  |
//	                 +---------------------|--+
//	                                       v the operator has begun
//	  Awake <------------------------- Asleep
//	            hibernation is off
//
// # Dozes
//
// A cluster of one instance may doze before it hibernates: the instance is fenced, so that its instance manager stops
// PostgreSQL and keeps the pod. A fence stops PostgreSQL at once, even while it has clients, so no client may reach it
// by then. An attempt to doze therefore takes two more steps: Preparing, after ListingBackups, makes the stop short;
// LeavingServices, after AskingSiblings, makes the pod not ready and waits until no Service leads to it and the gateway
// holds every new client. The patch in Hibernating sets the fence and leaves hibernation off.
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
//	              Retracting, Resuming, Awake: its annotations are removed, the schedules resumed
//
// The gateway lifts the fence for a client once the stop is recorded, and the sidecar sees that. A fence that was
// lifted before that may still stop PostgreSQL: as long as the annotation dozing-since is there and no stop is
// recorded, the gateway holds clients. The sidecar removes that annotation once a postmaster serves that no fence will
// stop.
//
// # Guarantees
//
// Hibernation is turned on only after the gateway has acknowledged the announcement and then, in this order, the
// schedules were suspended, every sibling was sampled, the Backups were listed and the Cluster was read, and this
// instance was sampled, and none of these found a blocker. A blocker found on the way ends the attempt. For a cluster
// that dozes, all that was done before the fence, and only the Backups are listed again.
//
// An attempt is undone in this order: the announcement is removed, then the schedules are resumed, once the pod is
// ready; the next attempt waits for that. The patch that turns hibernation on requires the resourceVersion of a state
// that contains the announcement. So once the announcement is gone, such a patch can only fail, even if its answer was
// lost and it is still in flight.
//
// Hibernation is turned off again only while this field manager alone owns the annotation, the operator has deleted
// nothing, and the Cluster has not changed since it was read.
//
// The fence is set only while the gateway confirms that it holds every client, and PostgreSQL is prepared. The pod must
// have been not ready since before that confirmation, and the checks that precede hibernation must have been made after
// it.
//
// The pod is made ready again only when no fence of ours can stop PostgreSQL any more. If an attempt ends before it
// requested its fence, that is at once. Otherwise it is after the announcement is gone, so that a late fence can only
// fail, and, unless no fence was set by then, once a postmaster serves that no fence will stop. A fence that is not
// ours is never lifted.
//
// # Failures
//
//   - After a lost answer, the action counts as neither done nor failed: the Cluster is read before anything is undone.
//   - After a restart, the phase is Starting and the Cluster determines how to continue. An announcement that a primary
//     finds is stale, because only the primary announces, and is removed. If the gateway holds every client for it, the
//     fence may have been requested too, and the pod is kept not ready until that request can only fail. Schedules with
//     our mark are resumed as soon as the cluster is awake. If the annotations of a doze are there and its fence is
//     gone, the pod is kept not ready until a postmaster serves that no fence will stop.
//   - An instance manager that does not stop PostgreSQL is noticed after some seconds, and the fence lifted.
//   - Failing actions are repeated indefinitely, with increasing pauses.
//
// # Time
//
// The models that the tests explore have no clock: what can happen may happen in any order. These durations exclude the
// orders that the models leave out, and a test compares them (assumptions_test.go):
//
//	the models leave out                                            because
//	that the schedules are resumed again before a patch that was    resumeAgainDelay > contract.AnnouncementLifetime +
//	  late is lost, of this instance or of the former primary          kubernetes.callTimeout + a minute (--request-timeout)
//	that a postmaster serves, and a lifted fence stops it after     doze.notStoppingFor >= 25 s
//	  all; an instance manager obeys within 25 s                    doze.acceptingFor >= doze.notStoppingFor
//	that the gateway passes a client to such a postmaster before    plan.LiftedFenceTimeout >= doze.acceptingFor
//	  the sidecar is sure, or finds PostgreSQL stopped before       plan.sidecarTimeout >= 25 s
//	  the instance manager has obeyed
//	that a client that the gateway has passed on reaches            heldDelay > waker.holdsWithin + 200 ms (a segment sent again)
//	  PostgreSQL after the last sample
//	that the gateway never has the time to confirm a doze           holdingTimeout >= config.longestHandover + 2 s (the kubelet's probe)
//	that the readiness port opens while a worker renews its lease   readiness.leaseDuration >= readiness.renewInterval + 2 * readiness.answerTimeout
//
// No constant bounds how long a watch lags. So these remain assumptions of the models:
//
//   - A replica of the gateway knows of a doze's announcement before the pod has left its Services.
//   - A new primary does not suspend schedules before the former one knows of the switchover, and its patches of
//     schedules have ended.
//   - A person makes no second change before the watch has brought the first.
//   - The plugin has seen its own acknowledgement before the deadline of the announcement passes.
//   - The clock of the plugin is ahead of the instance's by less than expiryMargin.
//
// # What no model has
//
//   - More than two switchovers, or a Machine that restarts, beside another Machine. In the first exploration another
//     primary is a few moves.
//   - A plugin with several replicas, or with Services that it cannot route.
//   - What the plugin does when the sidecar does not answer: it records a stop, removes a fence that is ignored, and
//     deletes a pod in which PostgreSQL was not started. The tests of plugin/wake/plan and e2e/tests prove that.
//   - A Backup, a drain or an upgrade that wakes a cluster, and an instance that dies: e2e/tests.
//   - The annotations that a person sets, and xata.io/scale-to-zero-wake manual: the transcripts, and the tests of
//     sidecar/idle.
//   - How long anything takes. That the cluster sleeps in every mode in which it may is
//     TestLoop_sleepsInEverySteadyModeOnceTheThresholdHasPassed, that it prepares again only after twice the idle
//     time TestDoze_preparesAgainAfterTwiceTheIdleTimeWhileTheArchiverIsSlow, and that a request on the channel has an effect or
//     an error TestControlChannel_aRequestHasAnEffectOrAnError.
//
// # Where to start reading
//
// The transcripts in testdata are complete handovers, event by event; start with on-time.txt and doze.txt (go test
// -update rewrites them). A test explores every state that the Machine can reach together with models of the API
// server, the operator, the gateway, a sibling, another primary and a person, and asserts the guarantees in each
// (promises_test.go). Another one does so for a cluster of one instance that dozes, with models of the instance
// manager, the kubelet and clients too (doze_promises_test.go), a third one for a cluster that hibernates, with the
// plugin's own decisions, deadlines and a client (routed_test.go), and a fourth one for two instances with a Machine
// each (pair_test.go).
package sleep
