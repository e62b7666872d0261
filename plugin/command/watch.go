package command

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// watchEvery is the minimum interval between two looks.
	watchEvery = 2 * time.Second
	// watchShare is the wait between two looks as a multiple of how long a look took: a look at hundreds of clusters
	// asks as many sidecars through the API server, which must not happen continuously.
	watchShare = 4
)

// watcher writes clusters when they change.
type watcher struct {
	*access
	program *program
	text    *statusText
	which   choice

	known map[types.NamespacedName]row // nil before the first look
	said  string                       // the note printed last
}

// watch looks until it is interrupted, which is not a failure.
func (w *watcher) watch(ctx context.Context) error {
	w.text.goesOn = true
	for {
		began := time.Now()
		answer, err := w.table(ctx, w.which, began)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (w.known == nil || !passing(err)):
			return err
		case err != nil:
			w.tell("Cannot list the clusters, retrying: " + err.Error())
		default:
			if err := w.take(answer, began); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(watchEvery, watchShare*time.Since(began))):
		}
	}
}

func (w *watcher) take(answer table, now time.Time) error {
	before := w.known
	w.known = map[types.NamespacedName]row{}
	var changed []row
	for _, r := range answer.Clusters {
		key := types.NamespacedName{Namespace: r.Namespace, Name: r.Cluster}
		w.known[key] = r
		if old, ok := before[key]; !ok || !same(old, r) {
			changed = append(changed, r)
		}
	}
	for key := range before {
		if _, ok := w.known[key]; !ok {
			w.program.say("Cluster %s is not listed any more.", key)
		}
	}
	w.tell(answer.problem())
	if before == nil && len(changed) == 0 {
		w.program.say("%s", w.none(w.which))
	}
	if w.program.printer == nil && len(changed) != 0 {
		return w.program.write(nil, w.text.of(changed, now))
	}
	for _, r := range changed {
		if err := w.program.print(r); err != nil {
			return err
		}
	}
	return nil
}

// tell prints a note about all clusters, if there is one, once.
func (w *watcher) tell(text string) {
	if text != w.said && text != "" {
		w.program.say("%s", text)
	}
	w.said = text
}

// same reports whether two looks at a cluster differ only in times that advance by themselves.
func same(a, b row) bool {
	for _, r := range []*row{&a, &b} {
		r.IdleForSeconds, r.Due, r.saved = nil, nil, saved{}
	}
	return reflect.DeepEqual(a, b)
}
