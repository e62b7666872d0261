package events

import (
	"context"
	"errors"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newClient(t *testing.T, functions interceptor.Funcs) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), cnpgv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(functions).Build()
}

func TestWrite(t *testing.T) {
	t.Parallel()
	orders := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "one"}}
	anew := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "two"}}
	woken := plan.Event{Reason: "Woken", Message: "Woken by 10.0.0.9", Occasion: "noon"}
	for _, row := range []struct {
		rule    string
		cluster *cnpgv1.Cluster
		event   plan.Event
		want    int
	}{
		{"what two replicas tell is one Event", orders, woken, 1},
		{"also where they know more or less of it", orders, plan.Event{Reason: "Woken", Message: "Woken by somebody", Occasion: "noon"}, 1},
		{"another time is another one", orders, plan.Event{Reason: "Woken", Occasion: "evening"}, 2},
		{"and so is something else at that time", orders, plan.Event{Warning: true, Reason: "WakesByHandOnly", Occasion: "noon"}, 2},
		{"and what happens to another Cluster of that name", anew, woken, 2},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			api := newClient(t, interceptor.Funcs{})
			if err := (&Writer{Client: api, Pod: "a"}).Write(t.Context(), orders, woken, now); err != nil {
				t.Fatal(err)
			}
			if err := (&Writer{Client: api, Pod: "b"}).Write(t.Context(), row.cluster, row.event, now.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			var all corev1.EventList
			if err := api.List(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			if len(all.Items) != row.want {
				t.Errorf("%d Events, want %d", len(all.Items), row.want)
			}
			for _, e := range all.Items {
				if warning := e.Reason == "WakesByHandOnly"; warning != (e.Type == corev1.EventTypeWarning) {
					t.Errorf("the type of %s is %s", e.Reason, e.Type)
				}
				if e.InvolvedObject.Kind != "Cluster" || e.InvolvedObject.APIVersion != "postgresql.cnpg.io/v1" || e.InvolvedObject.Name != "orders" || e.Count != 1 {
					t.Errorf("it is about %+v, %d times", e.InvolvedObject, e.Count)
				}
			}
		})
	}
	t.Run("a replica asks the API server once in an hour", func(t *testing.T) {
		t.Parallel()
		asked := 0
		api := newClient(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			asked++
			return c.Create(ctx, o, options...)
		}})
		writer := &Writer{Client: api}
		for want, events := range [][]plan.Event{nil, {woken, woken}, {{Reason: "Refused"}, woken}, {{Reason: "Woken", Occasion: "evening"}}} {
			for _, event := range events {
				if err := writer.Write(t.Context(), orders, event, now); err != nil {
					t.Fatal(err)
				}
			}
			if asked != want {
				t.Errorf("asked %d times, want %d", asked, want)
			}
		}
		again := plan.Event{Reason: "Refused"}
		if err := writer.Write(t.Context(), orders, again, now.Add(keptFor)); err != nil || asked != 4 {
			t.Errorf("once the API server may have dropped it: asked %d times, %v", asked, err)
		}
		writer.Forget(client.ObjectKeyFromObject(orders))
		if err := writer.Write(t.Context(), orders, again, now.Add(keptFor)); err != nil || asked != 5 {
			t.Errorf("of a Cluster that was forgotten: asked %d times, %v", asked, err)
		}
	})
	t.Run("a namespace that is being deleted needs none", func(t *testing.T) {
		t.Parallel()
		leaving := apierrors.NewForbidden(corev1.Resource("events"), "orders", errors.New("it is being terminated"))
		leaving.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		api := newClient(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return leaving }})
		if err := (&Writer{Client: api}).Write(t.Context(), orders, woken, now); err != nil {
			t.Error(err)
		}
	})
	t.Run("what cannot be written is an error", func(t *testing.T) {
		t.Parallel()
		refused := errors.New("no")
		api := newClient(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return refused }})
		if err := (&Writer{Client: api}).Write(t.Context(), orders, woken, now); !errors.Is(err, refused) {
			t.Errorf("got %v", err)
		}
	})
}
