package audit

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Word is something that happened to a Cluster, in the words of the models in sidecar/sleep, whose test replays traces.
type Word string

// The words. What changes none of this, such as another annotation, has none.
const (
	// The sidecar's writes. BackupsListed is a list that it read. Several patches of schedules by one attempt are one word.
	Announce           Word = "announce"
	Suspend            Word = "suspend"
	BackupsListed      Word = "backups-listed"
	Hibernate          Word = "hibernate"
	RemoveAnnouncement Word = "remove-announcement"
	Withdraw           Word = "withdraw"
	Resume             Word = "resume"
	Fence              Word = "fence"
	RecordStop         Word = "record-stop"
	LiftFence          Word = "lift-fence"
	// The plugin's. Interrupt removes the announcement of a doze, and WakeDozing ends one, as the command may.
	Acknowledge Word = "acknowledge"
	Hold        Word = "hold"
	Interrupt   Word = "interrupt"
	Wake        Word = "wake"
	WakeDozing  Word = "wake-dozing"
	RemoveFence Word = "remove-fence"
	// The operator's.
	OperatorBegins Word = "operator-begins"
	PodsGone       Word = "pods-gone"
	Failover       Word = "failover"
	// A person's, or another program's.
	PersonHibernates          Word = "person-hibernates"
	PersonWakes               Word = "person-wakes"
	PersonTakesHibernation    Word = "person-takes-switch"
	PersonAnnounces           Word = "person-announces"
	PersonRemovesAnnouncement Word = "person-removes-announcement"
	PersonAcknowledges        Word = "person-acknowledges"
	PersonOwnsSuspension      Word = "person-owns-suspension"
	PersonLiftsFence          Word = "person-lifts-fence"
	PersonReplaces            Word = "person-replaces"
	// Who resumes the schedules if no sidecar does, such as the plugin of a Cluster whose feature was turned off.
	OthersResume Word = "others-resume"
	// What changes the rules: whether the gateway is needed, and whether there is a schedule to suspend.
	WakeManual      Word = "wake-manual"
	WakeOnConnect   Word = "wake-on-connect"
	SchedulesAppear Word = "schedules-appear"
	SchedulesGone   Word = "schedules-gone"
)

// Step is a word of a trace.
type Step struct {
	// At is when the API server answered the request that did it or, of what is seen only in a Cluster's status, that showed it.
	At   time.Time
	Word Word
	// By is the pod that asked, if its token says.
	By string
}

// Trace is what happened to one Cluster, in the order in which it took effect.
type Trace struct {
	Namespace, Name, UID string
	// Dozed says that a doze was announced, even if the Cluster hibernated without one at another time. sidecar/sleep has
	// a model for such Clusters.
	Dozed bool
	Steps []Step
}

// Text is the trace as a file: a line that names the Cluster, and a line for every step.
func (t Trace) Text() string {
	var text strings.Builder
	kind := "cluster"
	if t.Dozed {
		kind = "dozer"
	}
	fmt.Fprintf(&text, "%s %s/%s %s\n", kind, t.Namespace, t.Name, t.UID)
	for _, step := range t.Steps {
		text.WriteString(strings.TrimSpace(fmt.Sprintf("%s %s %s", step.At.UTC().Format("2006-01-02T15:04:05.000Z"), step.Word, step.By)) + "\n")
	}
	return text.String()
}

// Traces are those of all Clusters that were made while the log was written. omitted are the others: those whose
// beginning is unknown, and those that another client fenced, for which no model has words.
//
// Each write is logged with the object that the API server answered with. That gives the order of the writes, which is that of
// their resourceVersions, and what has become of the Cluster's status since the write before; so writes of the status, which
// are many, need not be logged. A request that was refused, or that changed nothing, has no word.
func Traces(log io.Reader) (traces []Trace, omitted []string, err error) {
	all, err := records(log)
	if err != nil {
		return nil, nil, err
	}
	for _, cluster := range byCluster(all) {
		t := tracer{schedules: map[string]schedule{}}
		for i := range cluster {
			t.take(&cluster[i])
		}
		t.finish()
		traces, omitted = append(traces, t.traces...), append(omitted, t.omitted...)
	}
	return traces, omitted, nil
}

// byCluster groups records by their Cluster, each group in the order in which they took effect.
func byCluster(all []record) [][]record {
	groups, known := map[string][]record{}, map[string]string{}
	for _, r := range all {
		for _, r := range r.split() {
			if cluster := r.cluster(known); cluster != "" {
				name := r.namespace + "/" + cluster
				groups[name] = append(groups[name], r)
			}
		}
	}
	ordered := make([][]record, 0, len(groups))
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		ordered = append(ordered, inOrder(groups[name]))
	}
	return ordered
}

// inOrder sorts records. Writes have versions. Of the others it is only known when they were asked for: one stands before the first
// write that was asked for later. So what a sidecar read before it wrote something stands before that, and after what it had
// seen by then. A write that changes nothing has the version of an earlier one: it was asked for later than others that follow it.
func inOrder(group []record) []record {
	var writes, others []record
	for _, r := range group {
		if r.version != 0 {
			writes = append(writes, r)
		} else {
			others = append(others, r)
		}
	}
	slices.SortStableFunc(writes, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.version, b.version), a.done.Compare(b.done))
	})
	slices.SortStableFunc(others, func(a, b record) int { return a.received.Compare(b.received) })
	earliest := make([]time.Time, len(writes)) // when this or one that follows was asked for
	for i, w := range slices.Backward(writes) {
		earliest[i] = w.received
		if i+1 < len(writes) && earliest[i+1].Before(w.received) {
			earliest[i] = earliest[i+1]
		}
	}
	merged := make([]record, 0, len(group))
	for i, w := range writes {
		for len(others) != 0 && !earliest[i].Before(others[0].received) {
			merged, others = append(merged, others[0]), others[1:]
		}
		merged = append(merged, w)
	}
	return append(merged, others...)
}
