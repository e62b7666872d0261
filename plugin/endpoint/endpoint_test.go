package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/internal/informerstest"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

var orders = types.NamespacedName{Namespace: "shop", Name: "orders"}

const page = "/v1/namespaces/shop/clusters/orders/wake"

// world is an endpoint with an API server that knows the tokens "caller", who may patch the Clusters of the namespace
// shop, and "viewer", who may get them.
type world struct {
	t       *testing.T
	api     client.WithWatch
	handler http.Handler
	logged  bytes.Buffer
	// refuse lets the API server refuse a write of such an object; nil: none.
	refuse func(client.Object) error
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(o client.Object) error {
		if w.refuse == nil {
			return nil
		}
		return w.refuse(o)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithReturnManagedFields()
	w.api = informerstest.Index(builder).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			review(o)
			return errors.Join(ctx.Err(), refused(o))
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, with ...client.PatchOption) error {
			if err := refused(o); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, with...)
		},
	}).Build()
	endpoint := &Endpoint{
		Client: w.api, APIReader: w.api, Pods: informerstest.Reader(w.api).Pods, Group: "postgresql.cnpg.io",
		Logger: slog.New(slog.NewTextHandler(&w.logged, nil)),
	}
	w.handler = endpoint.Handler()
	return w
}

// review answers as the API server does.
func review(o client.Object) {
	switch asked := o.(type) {
	case *authenticationv1.TokenReview:
		if user := asked.Spec.Token; user == "caller" || user == "viewer" || user == "stranger" {
			asked.Status.Authenticated = true
			asked.Status.User = authenticationv1.UserInfo{Username: user, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"e": {"x"}}}
		}
	case *authorizationv1.SubjectAccessReview:
		of, a := asked.Spec, asked.Spec.ResourceAttributes
		known := a.Group == "postgresql.cnpg.io" && a.Resource == "clusters" && a.Namespace == "shop" && a.Name != "" &&
			cmp.Equal(of.Groups, []string{"g"}) && cmp.Equal(of.Extra, map[string]authorizationv1.ExtraValue{"e": {"x"}})
		asked.Status.Allowed = known && (of.User == "caller" || of.User == "viewer" && a.Verb == "get")
	}
}

// cluster is one that is awake.
func cluster(changes ...func(*cnpgv1.Cluster)) *cnpgv1.Cluster {
	c := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: orders.Name, Annotations: map[string]string{
		contract.AnnotationEnabled: "true",
	}}}
	c.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}
	c.Status.CurrentPrimary = "orders-1"
	for _, change := range changes {
		change(c)
	}
	return c
}

func hibernates(manager string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationHibernation] = "on"
		c.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "postgresql.cnpg.io/v1", FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:annotations":{"f:cnpg.io/hibernation":{}}}}`)},
		}}
		c.Status.Conditions = []metav1.Condition{{Type: contract.ConditionHibernation, Status: metav1.ConditionTrue, Reason: contract.Hibernated}}
	}
}

func annotated(key, value string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) { c.Annotations[key] = value }
}

// instance is the pod of the primary.
func instance(phase corev1.PodPhase, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "orders-1", CreationTimestamp: metav1.Now(), Labels: map[string]string{
			endpointslice.LabelCluster: orders.Name, endpointslice.LabelPodRole: "instance",
		}, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: orders.Name, UID: "u", Controller: ptr.To(true)},
		}},
		Spec:   corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// ask makes a request.
func (w *world) ask(method, path, token string) *httptest.ResponseRecorder {
	w.t.Helper()
	request := httptest.NewRequestWithContext(w.t.Context(), method, path, nil)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answered := httptest.NewRecorder()
	w.handler.ServeHTTP(answered, request)
	return answered
}

// requested returns when a wake of the Cluster was requested.
func (w *world) requested() string {
	w.t.Helper()
	var cluster cnpgv1.Cluster
	if err := w.api.Get(w.t.Context(), orders, &cluster); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	return cluster.Annotations[contract.AnnotationWakeRequested]
}

func TestEndpoint_tellsNothingToWhoMayNot(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, method, path, token string
		want                      int
	}{
		{"without a token", http.MethodPost, page, "", http.StatusUnauthorized},
		{"with an empty one", http.MethodGet, page, " ", http.StatusUnauthorized},
		{"with one that Kubernetes does not accept", http.MethodPost, page, "forged", http.StatusUnauthorized},
		{"who may not see the Cluster", http.MethodGet, page, "stranger", http.StatusForbidden},
		{"nor whether there is one", http.MethodGet, "/v1/namespaces/shop/clusters/none/wake", "stranger", http.StatusForbidden},
		{"nor wake it", http.MethodPost, page, "stranger", http.StatusForbidden},
		{"who may only see it does not wake it", http.MethodPost, page, "viewer", http.StatusForbidden},
		{"nor in another namespace", http.MethodPost, "/v1/namespaces/vault/clusters/orders/wake", "caller", http.StatusForbidden},
		{"who may see it is told that there is none", http.MethodGet, "/v1/namespaces/shop/clusters/none/wake", "viewer", http.StatusNotFound},
		{"who may patch it too", http.MethodPost, "/v1/namespaces/shop/clusters/none/wake", "caller", http.StatusNotFound},
		{"of methods there are two", http.MethodDelete, page, "caller", http.StatusMethodNotAllowed},
		{"of paths one", http.MethodPost, "/v1/namespaces/shop/clusters/orders/sleep", "caller", http.StatusNotFound},
		{"with all of its parts", http.MethodPost, "/v1/namespaces/shop/clusters/wake", "caller", http.StatusNotFound},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cluster(hibernates(contract.FieldManager)))
			got := w.ask(row.method, row.path, row.token)
			if got.Code != row.want || strings.Contains(got.Body.String(), "asleep") {
				t.Errorf("%d, want %d: %s", got.Code, row.want, got.Body)
			}
			if challenge := got.Header().Get("WWW-Authenticate"); (challenge == "Bearer") != (row.want == http.StatusUnauthorized) {
				t.Errorf("WWW-Authenticate: %q", challenge)
			}
			if at := w.requested(); at != "" {
				t.Errorf("a wake is requested: %s", at)
			}
		})
	}
}

func TestEndpoint_wakesAndTells(t *testing.T) {
	t.Parallel()
	ours := hibernates(contract.FieldManager)
	for _, row := range []struct {
		rule, method string
		objects      []client.Object
		want         int
		told         answer
		requested    bool
	}{
		{
			"a sleeping cluster is woken", http.MethodPost, []client.Object{cluster(ours)}, http.StatusAccepted,
			answer{State: "asleep", Progress: "The wake is requested and has not begun yet."}, true,
		},
		{"and not by a question", http.MethodGet, []client.Object{cluster(ours)}, http.StatusOK, answer{State: "asleep"}, false},
		{
			"one of which a window alone is listed too", http.MethodPost, []client.Object{cluster(ours, annotated(contract.AnnotationWake, "window"))},
			http.StatusAccepted, answer{State: "asleep", Progress: "The wake is requested and has not begun yet."}, true,
		},
		{
			"an awake one stays awake for the request", http.MethodPost,
			[]client.Object{cluster(), instance(corev1.PodRunning, corev1.ConditionTrue)}, http.StatusAccepted, answer{State: "awake", Ready: true}, true,
		},
		{
			"one that wakes says how far it is", http.MethodGet, []client.Object{cluster(), instance(corev1.PodPending, corev1.ConditionFalse)},
			http.StatusOK, answer{State: "waking", Progress: "The pod orders-1 starts its containers."}, false,
		},
		{
			"wake=manual is left to people", http.MethodPost, []client.Object{cluster(ours, annotated(contract.AnnotationWake, "manual"))},
			http.StatusConflict, answer{State: "asleep", Obstacle: plan.ReasonManual}, false,
		},
		{
			"so is a person's hibernation", http.MethodPost, []client.Object{cluster(hibernates("kubectl-annotate"))},
			http.StatusConflict, answer{State: "asleep by hand", Obstacle: plan.ReasonByHand}, false,
		},
		{
			"which a question tells too", http.MethodGet, []client.Object{cluster(hibernates("kubectl-annotate"))},
			http.StatusOK, answer{State: "asleep by hand", Obstacle: plan.ReasonByHand}, false,
		},
		{
			"what does not list the plugin is not written to while it is awake", http.MethodPost, []client.Object{
				cluster(func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }), instance(corev1.PodRunning, corev1.ConditionTrue),
			}, http.StatusOK, answer{State: "not enrolled", Ready: true}, false,
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, row.objects...)
			got := w.ask(row.method, page, "caller")
			var told answer
			if err := json.Unmarshal(got.Body.Bytes(), &told); err != nil {
				t.Fatalf("%v in %s", err, got.Body)
			}
			row.told.Namespace, row.told.Cluster = orders.Namespace, orders.Name
			if diff := cmp.Diff(row.told, told); diff != "" || got.Code != row.want {
				t.Errorf("%d, want %d (-want +got):\n%s", got.Code, row.want, diff)
			}
			at, err := time.Parse(time.RFC3339, w.requested())
			if requested := err == nil && time.Since(at) < contract.MaxRequestAge; requested != row.requested {
				t.Errorf("a wake is requested: %t, %s", requested, w.requested())
			}
			if logged := strings.Contains(w.logged.String(), "user=caller"); logged != (got.Code == http.StatusAccepted) {
				t.Errorf("logged:\n%s", &w.logged)
			}
		})
	}
}

func TestEndpoint_writesAgainWhatHasChangedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster(hibernates(contract.FieldManager)))
	failed := false
	w.refuse = func(o client.Object) error {
		if _, ok := o.(*cnpgv1.Cluster); !ok || failed {
			return nil
		}
		failed = true
		return apierrors.NewConflict(schema.GroupResource{Resource: "clusters"}, orders.Name, errors.New("it has changed"))
	}
	if got := w.ask(http.MethodPost, page, "caller"); got.Code != http.StatusAccepted || w.requested() == "" || !failed {
		t.Errorf("%d: %s", got.Code, got.Body)
	}
}

func TestEndpoint_saysThatTheAPIServerFails(t *testing.T) {
	t.Parallel()
	errEtcd, late := errors.New("no etcd"), fmt.Errorf("no etcd: %w", context.DeadlineExceeded)
	for _, row := range []struct {
		fails client.Object
		by    error
	}{
		{&authenticationv1.TokenReview{}, errEtcd}, {&authorizationv1.SubjectAccessReview{}, errEtcd},
		{&cnpgv1.Cluster{}, errEtcd}, {&cnpgv1.Cluster{}, late},
	} {
		t.Run(fmt.Sprintf("%T, %v", row.fails, row.by), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cluster(hibernates(contract.FieldManager)))
			w.refuse = func(o client.Object) error {
				if fmt.Sprintf("%T", o) != fmt.Sprintf("%T", row.fails) {
					return nil
				}
				return row.by
			}
			got := w.ask(http.MethodPost, page, "caller")
			if got.Code != http.StatusServiceUnavailable || strings.Contains(got.Body.String(), "etcd") {
				t.Errorf("%d: %s", got.Code, got.Body)
			}
			if logged := w.logged.String(); !strings.Contains(logged, "no etcd") || strings.Contains(logged, "Bearer") {
				t.Errorf("logged:\n%s", logged)
			}
		})
	}
}

// The server ends the context of a connection once one of its requests takes longer than the time to read it.
func TestEndpoint_outlivesTheContextOfItsConnection(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	request.Header.Set("Authorization", "bearer caller") // in any case of letters
	answered := httptest.NewRecorder()
	newWorld(t, cluster()).handler.ServeHTTP(answered, request)
	if answered.Code != http.StatusOK {
		t.Errorf("%d: %s", answered.Code, answered.Body)
	}
}

func TestEndpoint_boundsTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, cluster())
		for range oneBurst {
			if got := w.ask(http.MethodGet, page, "viewer"); got.Code != http.StatusOK {
				t.Fatalf("%d: %s", got.Code, got.Body)
			}
		}
		got := w.ask(http.MethodGet, page, "viewer")
		if got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") != "1" {
			t.Errorf("%d, Retry-After %q", got.Code, got.Header().Get("Retry-After"))
		}
		time.Sleep(time.Second)
		if got := w.ask(http.MethodGet, page, "viewer"); got.Code != http.StatusOK {
			t.Errorf("a second later: %d", got.Code)
		}
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	// many is how many requests one after the other are let through.
	many := func(ask func() time.Duration) (count int) {
		for ask() == 0 {
			count++
		}
		return count
	}
	l := newLimits()
	for _, row := range []struct {
		rule string
		ask  func() time.Duration
		want int
	}{
		{"a source uses up its part", func() time.Duration { return l.ofSource("a", now) }, oneBurst},
		{"and no other's", func() time.Duration { return l.ofSource("b", now) }, allBurst - oneBurst},
		{"all together have used up theirs", func() time.Duration { return l.ofSource("c", now) }, 0},
		{"a user has a part of its own", func() time.Duration { return l.ofUser("a", now) }, oneBurst},
		{"which grows again", func() time.Duration { return l.ofUser("a", now.Add(time.Second)) }, oneRate},
	} {
		if got := many(row.ask); got != row.want {
			t.Errorf("%s: %d, want %d", row.rule, got, row.want)
		}
	}
	for i := range 3 * mostKept {
		now = now.Add(time.Second)
		l.ofUser(fmt.Sprint(i), now)
	}
	if len(l.users) > mostKept {
		t.Errorf("limits of %d users are kept, want %d at most", len(l.users), mostKept)
	}
}
