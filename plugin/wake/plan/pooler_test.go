package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// scaled are the changes of Poolers in a line.
func scaled(all []Scaling) string {
	var parts []string
	for _, scaling := range all {
		part := scaling.Name
		if scaling.Instances != nil {
			part += fmt.Sprintf(" to %d", *scaling.Instances)
		}
		if scaling.Mark != nil {
			part += ", marked " + *scaling.Mark
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

func TestScale_poolersSleepOncePerSleep(t *testing.T) {
	t.Parallel()
	asleep := func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationHibernation], c.ManagedFields = "on", by(contract.FieldManager)
	}
	awake := func(*cnpgv1.Cluster) {}
	also := func(change func(*cnpgv1.Cluster), key, value string) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) { change(c); c.Annotations[key] = value }
	}
	led := now.Add(-time.Minute)
	for _, row := range []struct {
		rule    string
		cluster func(*cnpgv1.Cluster)
		pooler  Pooler
		want    string
		next    time.Duration
	}{
		{"one of a sleeping cluster is scaled to zero", asleep, Pooler{Instances: 3, LedSince: led}, "p to 0, marked 3", 0},
		{"not before its Services lead to the gateway", asleep, Pooler{Instances: 3}, "", 0},
		{"and every node knows", asleep, Pooler{Instances: 3, LedSince: now}, "", 3 * time.Second},
		{"one that a person has scaled to zero is left alone", asleep, Pooler{LedSince: led}, "", 0},
		{"one that we have scaled stays so", asleep, Pooler{Mark: "3", Ours: true, LedSince: led}, "", 0},
		{"one that a person has scaled meanwhile stands", asleep, Pooler{Mark: "3", Instances: 1, LedSince: led}, "", 0},
		{"one that has no instance to connect to is left alone", asleep, Pooler{Instances: 1, Useless: true, LedSince: led}, "", 0},
		{"where no connection wakes the cluster nothing has to lead to the gateway", also(asleep, contract.AnnotationWake, "manual"), Pooler{Instances: 3}, "p to 0, marked 3", 0},
		{"without the annotation nothing is scaled", also(asleep, contract.AnnotationPoolers, "none"), Pooler{Instances: 3, LedSince: led}, "", 0},
		{"a person's hibernation scales nothing", func(c *cnpgv1.Cluster) { asleep(c); c.ManagedFields = by("kubectl") }, Pooler{Instances: 3, LedSince: led}, "", 0},
		{"an awake cluster scales nothing", awake, Pooler{Instances: 3, LedSince: led}, "", 0},
		{"a wake gives back what there was", awake, Pooler{Mark: "3", Ours: true}, "p to 3", 0},
		{"so does the annotation that is removed", also(asleep, contract.AnnotationPoolers, "none"), Pooler{Mark: "2", Ours: true}, "p to 2", 0},
		{"so does the feature that is turned off", also(asleep, contract.AnnotationEnabled, "false"), Pooler{Mark: "2", Ours: true}, "p to 2", 0},
		{"so does a mistake", also(asleep, contract.AnnotationActivity, "x"), Pooler{Mark: "2", Ours: true}, "p to 2", 0},
		{"so does a person who takes the hibernation over", func(c *cnpgv1.Cluster) { asleep(c); c.ManagedFields = by("kubectl") }, Pooler{Mark: "2", Ours: true}, "p to 2", 0},
		{"so does a plugin that is not listed any more", func(c *cnpgv1.Cluster) { asleep(c); c.Spec.Plugins = nil }, Pooler{Mark: "2", Ours: true}, "p to 2", 0},
		{"so does a Cluster that is deleted", func(c *cnpgv1.Cluster) { asleep(c); c.DeletionTimestamp = &metav1.Time{Time: now} }, Pooler{Mark: "2", Ours: true}, "p to 2", 0},
		{"a mark that is no number gives one", awake, Pooler{Mark: "x", Ours: true}, "p to 1", 0},
		{"a person's number stays, without the mark", awake, Pooler{Mark: "3", Instances: 1}, "p", 0},
		{"a person's zero too", awake, Pooler{Mark: "3"}, "p", 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				contract.AnnotationEnabled: "true", contract.AnnotationPoolers: contract.PoolersSleep,
			}}}
			cluster.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}
			row.cluster(cluster)
			row.pooler.Name = "p"
			planned := Decide(State{Cluster: View(cluster, now), Poolers: []Pooler{row.pooler}, HandoverWait: 2 * time.Second}, now)
			if got := scaled(planned.Scale); got != row.want {
				t.Errorf("it is scaled %q, want %q", got, row.want)
			}
			if row.next != 0 && !planned.Next.Equal(now.Add(row.next)) {
				t.Errorf("the next plan is due at %s", planned.Next)
			}
		})
	}
	if got := scaled(Decide(State{Gone: true, Poolers: []Pooler{{Name: "p", Mark: "2", Ours: true}}}, now).Scale); got != "p to 2" {
		t.Errorf("of a Cluster that is gone it is scaled %q", got)
	}
}

func TestLeadPoolers_whileThereIsNoPgBouncer(t *testing.T) {
	t.Parallel()
	asleep := Cluster{HibernationOn: true, OwnsHibernation: true}
	announced := Cluster{Announced: announcement(20 * time.Second)}
	for _, row := range []struct {
		rule    string
		cluster Cluster
		sleeps  bool
		pooler  Pooler
		want    bool
		reason  Reason
	}{
		{"while the cluster sleeps", asleep, true, Pooler{Instances: 1, Services: []Service{{UID: "p", Ready: true}}}, true, ReasonAsleep},
		{"not without the annotation", asleep, false, Pooler{Instances: 1, Services: []Service{{UID: "p", Ready: true}}}, false, ReasonAsleep},
		{"not those of one that a person has scaled to zero", asleep, true, Pooler{Services: []Service{{UID: "p"}}}, false, ReasonAsleep},
		{"until PgBouncer serves again, after the annotation was removed", asleep, false, Pooler{Instances: 1, Services: []Service{{UID: "p", Led: true}}}, true, ReasonAsleep},
		{"and after a wake", Cluster{}, true, Pooler{Mark: "1", Services: []Service{{UID: "p", Led: true}}}, true, ReasonWaking},
		{"and no longer", Cluster{}, true, Pooler{Instances: 1, Services: []Service{{UID: "p", Led: true, Ready: true}}}, false, ReasonAwake},
		{"not before the cluster sleeps", announced, true, Pooler{Instances: 1, Services: []Service{{UID: "p", Ready: true}}}, false, ReasonAnnounced},
		{"not during a doze", Cluster{Dozing: true}, true, Pooler{Instances: 1, Services: []Service{{UID: "p", Ready: true}}}, false, ReasonDozing},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			row.cluster.Listed, row.cluster.Policy.Enabled, row.cluster.Policy.PoolersSleep = true, true, row.sleeps
			planned := Decide(State{Cluster: row.cluster, Poolers: []Pooler{row.pooler}}, now)
			if leads := slices.Contains(planned.Lead, types.UID("p")); leads != row.want || planned.Reason != row.reason {
				t.Errorf("it leads to the gateway: %t, %s", leads, planned.Reason)
			}
		})
	}
}
