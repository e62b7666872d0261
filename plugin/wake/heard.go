package wake

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// staleAfter is how long the API server may be silent before what the informers have is too old to pass a client on by: an
// instance's address may be another tenant's by then.
const staleAfter = 30 * time.Second

// askAPIServer reads this replica's own pod. That the pod is gone is an answer too, and a refusal is none: who may not read sees
// nothing any more.
func (p *peers) askAPIServer(ctx context.Context) {
	err := p.APIReader.Get(ctx, client.ObjectKey{Namespace: p.Settings.Replica.Namespace, Name: p.Settings.Replica.Pod}, &corev1.Pod{})
	if client.IgnoreNotFound(err) != nil {
		return
	}
	now := time.Now()
	p.heard.Store(&now)
}

// Stale reports whether the API server has not answered for so long, or never has, that what is known of the clusters may be wrong. Other
// replicas then lead the clients.
func (p *peers) Stale() bool {
	at := p.heard.Load()
	return at == nil || time.Since(*at) > staleAfter
}
