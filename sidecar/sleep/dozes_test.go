package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// dozes are the transcripts of dozes.
var dozes = []handoverTranscript{
	{"doze", "The cluster dozes, and a client wakes it.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.note("a client comes: the gateway lifts the fence, and removes the marks")
		tr.sees(woken)
		tr.done(AwaitServing, Resume)
	}},
	{"doze-archiver-slow", "The archiver is slow, so that PostgreSQL would not stop soon: nothing is announced.", func(tr *transcript) {
		tr.mayDoze()
		tr.observesDoze()
		tr.done(ListBackups)
		tr.finds(Prepare, idle.ReasonArchiverSlow)
		tr.note("it does not keep the cluster from hibernating at its time")
		tr.observes("")
	}},
	{"doze-endpoints-remain", "Services still lead to the instance, so that the gateway does not hold: the cluster does not doze.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.expires(TimerHolding)
		tr.retract()
	}},
	{"doze-expires", "The announcement is about to expire while the pod leaves its Services: the gateway leaves soon, so the pod is ready again.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.expires(TimerExpiry)
		tr.retract()
	}},
	{"doze-held-early", "The pod was not ready for a moment, so that the gateway held before the pod was made to leave its Services: they may lead\n" +
		"to it again.", func(tr *transcript) {
		tr.mayDoze()
		tr.handsOver()
		tr.done(AskSiblings, WithdrawReadiness)
		tr.cluster.Holding = tr.cluster.Announced
		tr.done(ReadCluster)
		tr.retract()
	}},
	{"doze-used-leaving", "Somebody uses the instance while it leaves its Services: it is ready again before the announcement is removed.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.observes(idle.ReasonActive)
		tr.retract()
	}},
	{"doze-used-sampling", "The last sample finds a session.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.finds(Sample, idle.ReasonActive)
		tr.retract()
	}},
	{"doze-client-while-held", "A client comes while the gateway holds, which removes the announcement: the fence could only fail.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.sees(func(v *View) { v.Announced = "" })
		tr.done(Sample, ReadCluster, Resume)
	}},
	{"doze-used-fenced", "Somebody uses the instance just as it is fenced: the fence is taken back. PostgreSQL may stop nevertheless.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample)
		tr.observes(idle.ReasonActive)
		tr.done(Fence, LiftFence, AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-answer-lost-on", "The answer to the fence's patch is lost, and the instance is fenced.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample)
		tr.takesEffect(Fence)
		tr.fails(Fence, Lost)
		tr.done(ReadCluster, AwaitStop, RecordStop)
	}},
	{"doze-answer-lost-off", "The answer to the fence's patch is lost, and the instance is not fenced: the patch may be on its way. The pod is ready\n" +
		"again only once the announcement is removed.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample)
		tr.fails(Fence, Lost)
		tr.done(ReadCluster, RemoveAnnouncement)
		tr.note("from here on the patch can only fail")
		tr.done(Resume)
	}},
	{"doze-restart-held", "The sidecar restarts while the gateway holds every client: the fence may have been requested.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.starts()
		tr.sees(func(*View) {})
		tr.done(WithdrawReadiness, ReadCluster, RemoveAnnouncement)
		tr.note("from here on the patch can only fail")
		tr.done(Resume)
	}},
	{"doze-restart-stopping", "The sidecar restarts while PostgreSQL stops.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample, Fence)
		tr.starts()
		tr.sees(func(*View) {})
		tr.done(WithdrawReadiness, AwaitStop, RecordStop)
	}},
	{"doze-restart-dozing", "The sidecar restarts while the cluster dozes, which is woken later.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.starts()
		tr.sees(func(*View) {})
		tr.done(WithdrawReadiness)
		tr.sees(woken)
		tr.done(AwaitServing, Resume)
	}},
	{"doze-restart-restarting", "The sidecar restarts once a person has lifted the fence: whether the PostgreSQL that answers will stay is not known.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample, Fence)
		tr.sees(func(v *View) { v.Fenced = false })
		tr.fails(AwaitStop, Refused)
		tr.starts()
		tr.sees(func(*View) {})
		tr.done(WithdrawReadiness, AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-person-lifts-early", "A person lifts the fence before PostgreSQL has stopped: it may yet stop, so that clients wait until it is known which one stays.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample, Fence)
		tr.sees(func(v *View) { v.Fenced = false })
		tr.fails(AwaitStop, Refused)
		tr.done(AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-person-lifts", "A person lifts the fence of a cluster that dozes.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.sees(func(v *View) { v.Fenced = false })
		tr.done(AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-ignored", "The instance manager does not stop PostgreSQL: the fence is taken back.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample, Fence)
		tr.expires(TimerManager)
		tr.give("AskManager: ignored", Completed{Action: AskManager, Ignored: true})
		tr.fails(AwaitStop, Refused)
		tr.done(LiftFence, AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-policy", "The policy changes while the cluster dozes: it is woken.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.sees(func(v *View) { v.MayDoze = false })
		tr.done(LiftFence, AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-deeper", "The cluster has dozed long enough, and hibernates.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.observes("")
		tr.done(ListBackups, Hibernate)
		tr.sees(func(v *View) { v.HibernationBegun = true })
	}},
	{"doze-deeper-operator-away", "The operator does not begin to hibernate a cluster that dozes: it is woken, because it does so only awake.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.observes("")
		tr.done(ListBackups, Hibernate)
		tr.expires(TimerOperator)
		tr.done(Withdraw, LiftFence, AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-deeper-unhealthy", "A cluster that dozes is not healthy, so that the operator would not hibernate it: it is woken.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.sees(func(v *View) { v.Healthy = false })
		tr.observes("")
		tr.done(LiftFence, AwaitServing)
		tr.sees(func(v *View) { v.Healthy = true })
		tr.done(RemoveAnnouncement, Resume)
	}},
	{"doze-deeper-backup", "A Backup waits for the instance when it is to hibernate: it is woken.", func(tr *transcript) {
		tr.mayDoze()
		tr.dozes()
		tr.observes("")
		tr.finds(ListBackups, idle.ReasonBackupRunning)
		tr.done(LiftFence, AwaitServing, RemoveAnnouncement, Resume)
	}},
	{"doze-conflict", "The operator writes the Cluster at the same time as the stop is to be recorded, for which clients wait.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample, Fence, AwaitStop)
		tr.fails(RecordStop, Conflict)
		tr.done(ReadCluster, AwaitStop, RecordStop)
	}},
	{"doze-api-away", "The API server is away when PostgreSQL has stopped, and again when the cluster is to hibernate.", func(tr *transcript) {
		tr.mayDoze()
		tr.leavesServices()
		tr.held()
		tr.done(Sample, Fence, AwaitStop)
		tr.fails(RecordStop, Lost)
		tr.expires(TimerRetry)
		tr.fails(ReadCluster, Lost)
		tr.expires(TimerRetry)
		tr.done(ReadCluster, AwaitStop)
		tr.note("the operator has written the Cluster at the same time")
		tr.fails(RecordStop, Conflict)
		tr.expires(TimerRetry)
		tr.done(ReadCluster, AwaitStop, RecordStop)
		tr.observes("")
		tr.fails(ListBackups, Lost)
		tr.observes("") // the wait is not over
		tr.expires(TimerRetry)
	}},
}

func woken(v *View) { v.Fenced, v.Stopped, v.DozeEnding = false, false, false }

// mayDoze is a primary at rest whose cluster may doze.
func (tr *transcript) mayDoze() {
	tr.awake()
	tr.cluster.MayDoze = true
	tr.machine.view = tr.cluster
}

// observesDoze gives an observation: idle long enough to doze.
func (tr *transcript) observesDoze() { tr.give("an observation: idle, to doze", Observed{Doze: true}) }

// handsOver is an attempt to doze up to the question whether the other instances are idle.
func (tr *transcript) handsOver() {
	tr.observesDoze()
	tr.done(ListBackups, Prepare, Announce)
	tr.sees(func(v *View) { v.Acknowledged = v.Announced })
	tr.done(Suspend)
}

// leavesServices is an attempt up to the pod's leave from its Services.
func (tr *transcript) leavesServices() {
	tr.handsOver()
	tr.done(AskSiblings, WithdrawReadiness, ReadCluster)
}

// held is the gateway that holds every client, and the last questions.
func (tr *transcript) held() {
	tr.sees(func(v *View) { v.Holding = v.Announced })
	tr.expires(TimerHeld)
	tr.done(ListBackups, ReadCluster)
}

// dozes is all the way down.
func (tr *transcript) dozes() {
	tr.leavesServices()
	tr.held()
	tr.done(Sample, Fence, AwaitStop, RecordStop)
}
