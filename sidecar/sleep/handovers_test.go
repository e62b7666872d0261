package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// handoverTranscript is what a transcript is about, and what happens.
type handoverTranscript struct {
	name, title string
	play        func(*transcript)
}

// handovers are the transcripts of handovers to hibernation.
var handovers = []handoverTranscript{
	{"on-time", "The cluster is idle for the threshold, falls asleep, and is woken.", func(tr *transcript) {
		tr.starts()
		tr.sees(primary)
		tr.done(Resume)
		tr.expires(TimerResume)
		tr.done(Resume)
		tr.observes(idle.ReasonWaiting)
		tr.attempt()
		tr.confirm()
		tr.done(Sample, Hibernate)
		tr.sees(func(v *View) { v.HibernationBegun = true })
		tr.note("the pods are deleted; a client comes; the gateway turns hibernation off; the pods start")
		tr.starts()
		tr.sees(primary)
		tr.done(Resume)
	}},
	{"manual", "Only people wake the cluster: no gateway is waited for.", func(tr *transcript) {
		tr.starts()
		tr.sees(func(v *View) { *v = View{Primary: true, Healthy: true, Manual: true} })
		tr.done(Resume)
		tr.observes("")
		tr.done(ListBackups, Announce, Suspend)
		tr.confirm()
		tr.done(Sample, Hibernate)
	}},
	{"standby-session", "A session on a standby, opened during the handover, ends the attempt.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.finds(AskSiblings, idle.ReasonSiblingActive)
		tr.retract()
		tr.observes("") // the wait is not over
		tr.expires(TimerRetry)
	}},
	{"no-gateway", "No gateway acknowledges: the cluster is not put to sleep, and the tries become rare.", func(tr *transcript) {
		tr.awake()
		for range 2 {
			tr.observes("")
			tr.done(ListBackups, Announce)
			tr.expires(TimerAcknowledgement)
			tr.done(ReadCluster, RemoveAnnouncement)
			tr.expires(TimerRetry)
		}
	}},
	{"backup", "A Backup that begins during the handover ends the attempt.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.done(AskSiblings)
		tr.finds(ListBackups, idle.ReasonBackupRunning)
		tr.done(ReadCluster)
		tr.retract()
	}},
	{"answer-lost-on", "The answer to the hibernation patch is lost, and hibernation is on.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.confirm()
		tr.done(Sample)
		tr.takesEffect(Hibernate)
		tr.fails(Hibernate, Lost)
		tr.fails(ReadCluster, Lost)
		tr.expires(TimerRetry)
		tr.done(ReadCluster)
		tr.sees(func(v *View) { v.HibernationBegun = true })
	}},
	{"answer-lost-off", "The answer to the hibernation patch is lost, and hibernation is off. The patch may be on its way: the announcement is\n" +
		"removed first, so that the patch finds another resourceVersion.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.confirm()
		tr.done(Sample)
		tr.fails(Hibernate, Lost)
		tr.done(ReadCluster, RemoveAnnouncement)
		tr.note("from here on the patch can only fail")
		tr.done(Resume)
		tr.expires(TimerResume)
		tr.done(Resume)
	}},
	{"withdrawn-in-use", "Somebody comes just after hibernation was turned on, and before the operator has begun: it is turned off.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.confirm()
		tr.done(Sample, Hibernate)
		tr.expires(TimerRecheck)
		tr.finds(Sample, idle.ReasonActive)
		tr.done(AskSiblings, Withdraw, Resume)
	}},
	{"withdrawn-operator-away", "The operator does not begin: it would put the cluster to sleep whenever it is back, so hibernation is turned off.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.confirm()
		tr.done(Sample, Hibernate)
		tr.expires(TimerRecheck)
		tr.done(Sample, AskSiblings)
		tr.expires(TimerOperator)
		tr.done(Withdraw, Resume)
	}},
	{"restart", "The sidecar restarts in the middle of a handover: what it finds is undone.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.starts()
		tr.sees(func(*View) {})
		tr.done(RemoveAnnouncement, Resume)
		tr.expires(TimerResume)
		tr.done(Resume)
	}},
	{"failover", "A failover in the middle of a handover: the old primary leaves everything to the new one, which undoes it.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.sees(func(v *View) { v.Primary, v.Healthy = false, false })
		tr.done(AskSiblings, ReadCluster)
		tr.note("the instance that becomes the primary")
		tr.starts()
		tr.sees(func(*View) {})
		tr.sees(func(v *View) { v.Primary, v.NotReady = true, true })
		tr.done(RemoveAnnouncement)
		tr.sees(func(v *View) { v.NotReady = false })
		tr.done(Resume)
	}},
	{"person", "A person hibernates the cluster during a handover, and wakes it. Their switch is left alone.", func(tr *transcript) {
		tr.awake()
		tr.attempt()
		tr.sees(func(v *View) { v.HibernationOn = true })
		tr.done(AskSiblings, ReadCluster)
		tr.sees(func(v *View) { v.HibernationOn, v.Announced = false, "" })
		tr.done(Resume)
	}},
	{"standby", "A standby sees that the primary has put the cluster to sleep: it ends its sessions that do not count.", func(tr *transcript) {
		tr.starts()
		tr.sees(standby)
		tr.observes("")
		tr.sees(func(v *View) { v.HibernationOn, v.OwnsHibernation = true, true })
		tr.sees(func(v *View) { v.HibernationBegun = true })
	}},
}

func primary(v *View) { *v = View{Primary: true, Healthy: true} }
func standby(v *View) { *v = View{Healthy: true} }

// awake is a primary at rest.
func (tr *transcript) awake() {
	primary(&tr.cluster)
	tr.machine = Machine{phase: Awake, view: tr.cluster}
	tr.print("", Awake.String(), "", "", "")
}

// attempt is an attempt to sleep up to the last questions.
func (tr *transcript) attempt() {
	tr.observes("")
	tr.done(ListBackups, Announce)
	tr.sees(func(v *View) { v.Acknowledged = v.Announced })
	tr.done(Suspend)
}

// confirm answers the last questions.
func (tr *transcript) confirm() { tr.done(AskSiblings, ListBackups, ReadCluster) }

// retract undoes an attempt.
func (tr *transcript) retract() {
	tr.done(ReadCluster, RemoveAnnouncement, Resume)
}
