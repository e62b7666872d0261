// Package endpoint lets a program wake a cluster before it connects, and ask how far the wake is. A request is an
// annotation of the Cluster, so that any replica can take it, and the wake begins as for any other request.
//
// Callers present a Kubernetes token. The API server identifies the user, and decides whether it may patch the Cluster,
// to wake it, or get it, to query it. Other users do not even learn whether the Cluster exists.
package endpoint

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/retry"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// path is where a cluster is asked about and woken.
const path = "/v1/namespaces/{namespace}/clusters/{cluster}/wake"

// patience bounds what one request asks of the API server.
const patience = 10 * time.Second

// Endpoint answers requests.
type Endpoint struct {
	// Client writes requests, reads Clusters and has tokens and rights reviewed. APIReader reads Clusters as they are now.
	Client    client.Client
	APIReader client.Reader
	// Pods lists the pods of a cluster's instances.
	Pods func(context.Context, types.NamespacedName) ([]corev1.Pod, error)
	// Group is the API group of the Cluster resource.
	Group  string
	Logger *slog.Logger

	limits *limits
}

// answer is what a caller is told. Its words are those of kubectl scale_to_zero status.
type answer struct {
	Namespace string             `json:"namespace"`
	Cluster   string             `json:"cluster"`
	State     clusterstate.State `json:"state"`
	// Ready says that the primary is ready to serve.
	Ready bool `json:"ready"`
	// Progress says what a wake waits for.
	Progress string `json:"progress,omitempty"`
	// Obstacle is why a request does not wake the cluster while it sleeps.
	Obstacle plan.Reason `json:"obstacle,omitempty"`
}

// Handler returns the handler of all requests.
func (e *Endpoint) Handler() http.Handler {
	e.limits = newLimits()
	mux := http.NewServeMux()
	mux.Handle("GET "+path, e.admit("get", e.tell))
	mux.Handle("POST "+path, e.admit("patch", e.wake))
	return mux
}

// serve carries out a request of a user who may make it.
type serve func(ctx context.Context, w http.ResponseWriter, name types.NamespacedName, user string)

// tell answers with the state of the cluster.
func (e *Endpoint) tell(ctx context.Context, w http.ResponseWriter, name types.NamespacedName, _ string) {
	var cluster cnpgv1.Cluster
	if err := e.Client.Get(ctx, name, &cluster); err != nil {
		e.fail(w, name, err)
		return
	}
	e.answer(ctx, w, http.StatusOK, &cluster)
}

// wake requests a wake, unless none would begin.
func (e *Endpoint) wake(ctx context.Context, w http.ResponseWriter, name types.NamespacedName, user string) {
	var cluster cnpgv1.Cluster
	var status int
	err := retry.OnError(retry.Attempts, apierrors.IsConflict, func() error {
		cluster = cnpgv1.Cluster{}
		if err := e.APIReader.Get(ctx, name, &cluster); err != nil {
			return err // it stands for the API server
		}
		now := time.Now()
		switch view := plan.View(&cluster, now); {
		case view.ObstacleTo(contract.CauseRequest) == "":
			status = http.StatusAccepted
			requested := now.UTC().Format(time.RFC3339)
			changes := map[string]*string{contract.AnnotationWakeRequested: &requested}
			if err := waker.Annotate(ctx, e.Client, &cluster, changes); err != nil {
				return err // it says what failed
			}
			metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, contract.AnnotationWakeRequested, requested)
		case view.Sleeps():
			status = http.StatusConflict
		default: // it is awake, and what it has not turned on is left alone
			status = http.StatusOK
		}
		return nil
	})
	if err != nil {
		e.fail(w, name, err)
		return
	}
	if status == http.StatusAccepted {
		e.Logger.Info("a wake is requested at the endpoint", "namespace", name.Namespace, "cluster", name.Name, "user", user)
	}
	e.answer(ctx, w, status, &cluster)
}

func (e *Endpoint) answer(ctx context.Context, w http.ResponseWriter, status int, cluster *cnpgv1.Cluster) {
	name, now := client.ObjectKeyFromObject(cluster), time.Now()
	pods, err := e.Pods(ctx, name)
	if err != nil {
		e.fail(w, name, err)
		return
	}
	seen := clusterstate.See(cluster, pods, true, now)
	told := answer{Namespace: name.Namespace, Cluster: name.Name, State: seen.State(now), Ready: seen.PrimaryReady()}
	switch {
	case told.State == clusterstate.Waking:
		told.Progress = seen.Progress()
	case !seen.View.Sleeps():
	case seen.View.ObstacleTo(contract.CauseRequest) != "":
		told.Obstacle = seen.View.ObstacleTo(contract.CauseRequest)
	case !seen.View.Policy.WakeRequested.IsZero():
		told.Progress = "The wake is requested and has not begun yet."
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(told)
}

// fail answers a request that the API server refused or did not answer.
func (e *Endpoint) fail(w http.ResponseWriter, name types.NamespacedName, err error) {
	if apierrors.IsNotFound(err) {
		http.Error(w, "there is no such Cluster", http.StatusNotFound)
		return
	}
	e.Logger.Warn("cannot answer at the endpoint", "namespace", name.Namespace, "cluster", name.Name, "error", err.Error())
	http.Error(w, "the API server does not answer the plugin, or refuses; the plugin's log says why", http.StatusServiceUnavailable)
}
