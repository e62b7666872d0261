package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// HibernatedBy begins the annotation asleep-reason of a hibernation that was taken over.
const HibernatedBy = "hibernated by "

// adopt takes over the hibernation of a listed tool once the operator has deleted every pod, because a sidecar would
// withdraw a hibernation of ours that the operator has not begun. It adds an Event about one that was taken over.
func (p *Plan) adopt(state State) {
	cluster, reason := state.Cluster, state.Annotations[contract.AnnotationAsleepReason]
	if cluster.Obstacle() == ReasonByHand && cluster.Hibernated && slices.Contains(state.Adopted, cluster.HibernatedBy) {
		p.Adopt = cluster.HibernatedBy
	}
	if tool, adopted := strings.CutPrefix(reason, HibernatedBy); adopted && cluster.OwnsHibernation && slices.Contains(state.Adopted, tool) {
		p.Events = append(p.Events, Event{
			Reason: "HibernationAdopted", Message: fmt.Sprintf("%s has hibernated the cluster, and a connection wakes it", tool),
			Occasion: state.Annotations[contract.AnnotationAsleepSince],
		})
	}
}
