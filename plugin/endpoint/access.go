package endpoint

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/types"
)

// admit serves the requests of users that may use the verb on the Cluster.
func (e *Endpoint) admit(verb string, serve serve) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The request's context does not last: once a handler runs for longer than the server's read timeout, the
		// server cancels it, and those of later requests on the connection.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
		defer cancel()
		name := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("cluster")}
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			unauthorized(w)
			return
		}
		source, _, _ := net.SplitHostPort(r.RemoteAddr) // empty: one source for all that have none
		if wait := e.limits.ofSource(source, time.Now()); wait > 0 {
			tooMany(w, wait)
			return
		}
		user, err := e.authenticate(ctx, token)
		switch {
		case err != nil:
			e.fail(w, name, err)
			return
		case user == nil:
			unauthorized(w)
			return
		}
		if wait := e.limits.ofUser(user.Username, time.Now()); wait > 0 {
			tooMany(w, wait)
			return
		}
		switch may, err := e.authorize(ctx, user, verb, name); {
		case err != nil:
			e.fail(w, name, err)
		case !may:
			http.Error(w, "you may not "+verb+" this Cluster", http.StatusForbidden)
		default:
			serve(ctx, w, name, user.Username)
		}
	})
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, "present a valid token of Kubernetes as Authorization: Bearer", http.StatusUnauthorized)
}

func tooMany(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}

// authenticate returns whose token it is; nil: the API server does not accept it.
func (e *Endpoint) authenticate(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := e.Client.Create(ctx, review); err != nil {
		return nil, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated {
		return nil, nil
	}
	return &review.Status.User, nil
}

// authorize reports whether the user may do with the Cluster what the verb says.
func (e *Endpoint) authorize(
	ctx context.Context, user *authenticationv1.UserInfo, verb string, name types.NamespacedName,
) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: e.Group, Resource: "clusters", Verb: verb, Namespace: name.Namespace, Name: name.Name,
		},
	}}
	if err := e.Client.Create(ctx, review); err != nil {
		return false, fmt.Errorf("review the rights of %s: %w", user.Username, err)
	}
	return review.Status.Allowed, nil
}
