package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestStaysAwake_endsWithADecisionAfterTheThreshold(t *testing.T) {
	for _, row := range []struct {
		rule, blockers string
		decided        time.Duration // after the threshold
		announced      bool
		want           error
	}{
		{"the reason is named after the threshold", `"active"`, time.Hour, false, nil},
		{"the reason was named before the threshold", `"active"`, -time.Second, false, errNeverDecided},
		{"another reason is named", `"backup_running"`, time.Hour, false, errNeverDecided},
		{"it waits for the threshold besides", `"active","waiting"`, time.Hour, false, errNeverDecided},
		{"sleep is announced although the reason is named", `"active"`, time.Hour, true, ErrSlept},
	} {
		t.Run(row.rule, func(t *testing.T) {
			threshold := time.Now()
			c := &cnpgv1.Cluster{}
			c.Namespace, c.Name, c.Status.CurrentPrimary = "here", "one", "one-1"
			k := withActivity(t, c, func(writer http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprintf(writer, `{"decidedAt":%q,"blockers":[%s]}`, threshold.Add(row.decided).Format(time.RFC3339Nano), row.blockers)
			})
			if row.announced {
				text := "now"
				if err := k.Annotate(t.Context(), c, Announced, &text); err != nil {
					t.Fatal(err)
				}
			}
			if err := k.staysAwake(t.Context(), c, 0, 0, "active"); !errors.Is(err, row.want) {
				t.Errorf("it ended with %v, want %v", err, row.want)
			}
		})
	}
}

// withActivity returns a client of an API server that has the Cluster, and whose instance serves that page.
func withActivity(t *testing.T, c *cnpgv1.Cluster, page http.HandlerFunc) *Kubernetes {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := cnpgv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	watched := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, r *http.Request) {
		select { // the fake has no history for a watch that begins after a change
		case <-watched:
			page(writer, r)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	clientset, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	byName := func(object client.Object) []string { return []string{object.GetName()} }
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.DeepCopy()).WithIndex(c, "metadata.name", byName)
	var once sync.Once
	objects.WithInterceptorFuncs(interceptor.Funcs{Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
		defer once.Do(func() { close(watched) })
		return c.Watch(ctx, list, options...)
	}})
	return &Kubernetes{WithWatch: objects.Build(), Clientset: clientset}
}
