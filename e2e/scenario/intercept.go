package scenario

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
)

// LongestHold is how long a change can be held: the API server waits no longer for a webhook.
const LongestHold = 30 * time.Second

// Change is a pending change of an object by a service account.
type Change struct {
	// Kind is the object's kind.
	Kind string
	// Before and After are the object without and with the change.
	Before, After *unstructured.Unstructured
}

// Interceptor is a validating webhook that delays chosen changes of the Clusters and ScheduledBackups of a namespace, and
// refuses none.
type Interceptor struct {
	server *http.Server

	mutex   sync.Mutex
	matches func(Change) bool
	held    chan Change
	release chan struct{}
}

// Hold holds every change that matches until release, which may be called more than once. Several changes may match, because
// each replica of the gateway makes the same one; held receives the first. Hold replaces an earlier hold.
func (i *Interceptor) Hold(matches func(Change) bool) (held <-chan Change, release func()) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.matches, i.held, i.release = matches, make(chan Change, 1), make(chan struct{})
	opened := i.release
	return i.held, sync.OnceFunc(func() { close(opened) })
}

// take returns the channel that a change waits for, or nil.
func (i *Interceptor) take(change Change) <-chan struct{} {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if i.matches == nil || !i.matches(change) {
		return nil
	}
	select {
	case i.held <- change:
	default: // not the first
	}
	return i.release
}

// Intercept installs an Interceptor for the namespace. The API server must be able to reach this machine at the address that
// this machine uses to reach it.
func (k *Kubernetes) Intercept(ctx context.Context, namespace string) (*Interceptor, error) {
	address, err := k.ownAddress(ctx)
	if err != nil {
		return nil, err
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey(address.String(), []net.IP{address}, nil)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	listener, err := tls.Listen("tcp", net.JoinHostPort(address.String(), "0"), &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
	})
	if err != nil {
		return nil, fmt.Errorf("listen for the API server: %w", err)
	}
	i := &Interceptor{}
	i.server = &http.Server{Handler: http.HandlerFunc(i.review), ReadHeaderTimeout: LongestHold}
	go func() { _ = i.server.Serve(listener) }()
	if err := k.Create(ctx, webhook(namespace, "https://"+listener.Addr().String(), certificate)); err != nil {
		_ = i.server.Close()
		return nil, fmt.Errorf("create the webhook: %w", err)
	}
	return i, nil
}

// StopIntercepting removes the Interceptor. Held changes take effect.
func (k *Kubernetes) StopIntercepting(ctx context.Context, namespace string, i *Interceptor) error {
	if err := k.Delete(ctx, webhook(namespace, "", nil)); err != nil {
		return fmt.Errorf("delete the webhook: %w", err)
	}
	return i.server.Close()
}

// webhook covers changes by service accounts in the namespace.
func webhook(namespace, url string, authority []byte) *admissionregistrationv1.ValidatingWebhookConfiguration {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hold-" + namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "hold.e2e.scale-to-zero.cnpg-i.io",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: authority},
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
			TimeoutSeconds:          ptr.To(int32(LongestHold / time.Second)),
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "service-accounts", Expression: `request.userInfo.username.startsWith("system:serviceaccount:")`,
			}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"postgresql.cnpg.io"}, APIVersions: []string{"v1"},
					Resources: []string{"clusters", "scheduledbackups"},
				},
			}},
		}},
	}
}

// review answers the API server, after a delay if the change is held.
func (i *Interceptor) review(writer http.ResponseWriter, request *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(request.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(writer, "not an AdmissionReview", http.StatusBadRequest)
		return
	}
	change := Change{Kind: review.Request.Kind.Kind, Before: &unstructured.Unstructured{}, After: &unstructured.Unstructured{}}
	if change.Before.UnmarshalJSON(review.Request.OldObject.Raw) == nil && change.After.UnmarshalJSON(review.Request.Object.Raw) == nil {
		if released := i.take(change); released != nil {
			select {
			case <-released:
			case <-request.Context().Done():
			}
		}
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	writer.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(writer).Encode(review) // there is nobody else to report an error to
}

// ownAddress returns the local address from which this machine reaches the API server.
func (k *Kubernetes) ownAddress(ctx context.Context) (net.IP, error) {
	server, err := url.Parse(k.REST.Host)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(server.Hostname(), "443")) // sends nothing
	if err != nil {
		return nil, fmt.Errorf("find the way to the API server: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.UDPAddr).IP, nil
}
