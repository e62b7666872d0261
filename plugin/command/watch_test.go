package command

import (
	"context"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestWatch_writesWhatChanges(t *testing.T) {
	t.Parallel()
	for file, arguments := range map[string]string{
		"watch.txt":      "status --watch",
		"watch-all.txt":  "status -w -A",
		"watch.yaml":     "status --watch -o yaml",
		"watch-path.txt": `status --watch -o jsonpath={.cluster}:{.state};`,
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				w := newWorld(t, cluster("orders"), pod("orders", "orders-1", time.Hour, true), cluster("billing"), pod("billing", "billing-1", time.Hour, true))
				w.reports["orders-1"], w.reports["billing-1"] = busy("active"), idling(time.Minute)
				w.managers[client.ObjectKey{Namespace: "shop", Name: "orders"}] = contract.FieldManager
				ctx, cancel := context.WithCancel(t.Context())
				for at, change := range map[time.Duration]func(){
					11 * time.Second: func() {
						w.mutex.Lock()
						w.reports["orders-1"] = idling(time.Second)
						w.mutex.Unlock()
					},
					21 * time.Second: func() {
						w.mutex.Lock()
						w.lists = []error{apierrors.NewServiceUnavailable("it starts"), apierrors.NewServiceUnavailable("it starts")}
						w.mutex.Unlock()
					},
					31 * time.Second: func() { w.change("orders", asleep) },
					41 * time.Second: func() { w.change("billing", func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }) },
					61 * time.Second: cancel,
				} {
					time.AfterFunc(at, change)
				}
				golden(t, file, w.run(ctx, strings.Fields(arguments)...))
			})
		})
	}
}

// Watching many clusters does not ask their sidecars continuously.
func TestWatch_asksTheLessTheLongerALookTakes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, cluster("orders"))
		w.hangs["orders-1"] = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		looks := 0
		w.listed = func() { looks++ }
		w.run(ctx, "status", "-w")
		if most := int(10*time.Minute/(askWithin*(1+watchShare))) + 1; looks == 0 || looks > most {
			t.Errorf("it looked %d times, at most %d are due", looks, most)
		}
	})
}

func TestWatch_endsWithWhatIsRefused(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.lists = []error{nil, apierrors.NewUnauthorized("no")}
		golden(t, "watch-refused.txt", w.run(t.Context(), "status", "-w"))
	})
}

func TestSame_comparesWhatDoesNotPassByItself(t *testing.T) {
	t.Parallel()
	now, seconds := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), 1.5
	base := row{result: result{Cluster: "orders", State: clusterstate.Awake}, BlockedBy: []string{"active"}}
	for _, line := range []struct {
		rule   string
		change func(*row)
		want   bool
	}{
		{"the idle time passes", func(r *row) { r.IdleForSeconds = &seconds }, true},
		{"so does the time until it sleeps", func(r *row) { r.Due = &now }, true},
		{"what it saves grows", func(r *row) { r.CPUSeconds = &seconds }, true},
		{"a state is a change", func(r *row) { r.State = clusterstate.Asleep }, false},
		{"so is a blocker", func(r *row) { r.BlockedBy = []string{contract.AnnotationEnabled} }, false},
		{"and a note", func(r *row) { r.Note = "x" }, false},
		{"and since when", func(r *row) { r.Since = now }, false},
	} {
		other := base
		line.change(&other)
		if got := same(base, other); got != line.want {
			t.Errorf("%s: the same is %t", line.rule, got)
		}
	}
}
